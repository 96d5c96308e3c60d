//! A flag of `serve` for each knob of the registry.

use clap::builder::StyledStr;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use lockstep_flow::knobs::{KNOBS, Kind, Knob, Shapes};

/// The knobs that stand on the command line, with their values as written.
#[derive(Clone, Default, Debug)]
pub struct KnobFlags(pub Vec<(&'static Knob, String)>);

fn value_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Count { .. } => "N",
        Kind::Bytes { .. } => "BYTES",
        Kind::Choice(_) => "WORD",
        Kind::Text => "TEXT",
        Kind::Flag => "true|false",
    }
}

fn flag(knob: &'static Knob) -> Arg {
    let mut help = knob.doc.trim_end_matches('.').to_owned();
    if let Kind::Choice(words) = knob.kind {
        help.push_str(&format!(" [{}]", words.join(", ")));
    }
    if !knob.default.is_empty() {
        help.push_str(&format!(" [default: {}]", knob.default));
    }
    let arg = Arg::new(knob.name)
        .long(knob.flag)
        .value_name(value_name(knob.kind))
        .help(StyledStr::from(help))
        .overrides_with(knob.name);
    match knob.kind {
        Kind::Flag => arg.num_args(0..=1).default_missing_value("true"),
        _ => arg.num_args(1).allow_hyphen_values(true),
    }
}

impl Args for KnobFlags {
    fn augment_args(command: Command) -> Command {
        command.args(KNOBS.iter().map(flag))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for KnobFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |knob: &'static Knob| {
            matches.get_one::<String>(knob.name).map(|value| (knob, value.clone()))
        };
        Ok(KnobFlags(KNOBS.iter().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The same for `plan show`, whose help lists those that a plan depends on. The others are taken as
/// well: a server's whole command line may be given.
#[derive(Clone, Default, Debug)]
pub struct PlanFlags(pub KnobFlags);

/// Which model and which device's operations a plan is of; no generation changes them.
const OF_EVERY_PLAN: [&str; 3] = ["model.path", "model.load-format", "device.kind"];

fn shapes_plans(knob: &Knob) -> bool {
    let shapes = matches!(knob.shapes, Shapes::Plan | Shapes::StateLayout | Shapes::Numerics);
    shapes || OF_EVERY_PLAN.contains(&knob.name)
}

impl Args for PlanFlags {
    fn augment_args(command: Command) -> Command {
        command.args(KNOBS.iter().map(|knob| flag(knob).hide(!shapes_plans(knob))))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for PlanFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        KnobFlags::from_arg_matches(matches).map(PlanFlags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}
