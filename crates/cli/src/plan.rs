//! `lockstep plan show`.

use crate::args::PlanShowArgs;
use crate::build;
use crate::exit::{Exit, Failure};
use crate::{resolve, settings, store};

/// Shows one bucket's plan, without a server.
pub fn show(args: &PlanShowArgs) -> Result<Exit, Failure> {
    let loaded = settings::load(args.config.as_deref(), std::env::vars_os(), &args.knobs)?;
    let files = resolve::model(&loaded.settings, store)?;
    let shown = build::describe_plan(&loaded.settings, &files, &args.bucket)?;
    if args.json {
        println!("{}", shown.json);
    } else {
        print!("{}", shown.text);
    }
    Ok(Exit::Done)
}
