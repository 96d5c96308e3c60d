//! How a command ends, and the few flags that commands take.

/// Why a command stopped.
#[derive(Debug, PartialEq, Eq)]
pub enum Stop {
    /// The command line was not understood.
    Usage(String),
    /// Something that was checked, built or fetched did not work; the words say what.
    Failed(String),
}

impl Stop {
    /// A failure in these words.
    pub fn failed(why: impl Into<String>) -> Stop {
        Stop::Failed(why.into())
    }
}

/// How a command ends.
pub type Outcome = Result<(), Stop>;

/// Refuses every argument that is not in `known`.
pub fn only_flags(args: &[String], known: &[&str]) -> Result<(), Stop> {
    match args.iter().find(|a| !known.contains(&a.as_str())) {
        None => Ok(()),
        Some(bad) if known.is_empty() => {
            Err(Stop::Usage(format!("'{bad}' was given and the command takes no argument")))
        }
        Some(bad) => Err(Stop::Usage(format!("'{bad}' is not one of {}", known.join(", ")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_flag_is_named_beside_the_known_ones() {
        let args = vec!["--fast".to_string()];
        let stop = only_flags(&args, &["--no-tools"]).unwrap_err();
        assert_eq!(stop, Stop::Usage("'--fast' is not one of --no-tools".into()));
        assert!(only_flags(&["--no-tools".to_string()], &["--no-tools"]).is_ok());
    }
}
