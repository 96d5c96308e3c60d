//! `lockstep plan show`.

use crate::args::PlanShowArgs;
use crate::build;
use crate::exit::{Exit, Failure};
use crate::{out, resolve, settings, store};

/// Shows one bucket's plan, without a server.
pub fn show(args: &PlanShowArgs) -> Result<Exit, Failure> {
    let loaded = settings::load(args.config.as_deref(), std::env::vars_os(), &args.knobs.0)?;
    let files = resolve::model(&loaded.settings, store)?;
    let shown = build::describe_plan(&loaded.settings, &files, &args.bucket)?;
    if args.json {
        out::line(&shown.json);
    } else {
        out::page(shown.text.trim_end(), 6);
    }
    // The plan is out by now: where machines read it there is no second document.
    if let Some(path) = &args.svg
        && let Err(e) = std::fs::write(path, &shown.svg)
    {
        out::complain(format_args!("lockstep: {} cannot be written: {e}", path.display()));
        return Ok(Exit::Unexpected);
    }
    Ok(Exit::Done)
}
