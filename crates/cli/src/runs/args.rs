//! What was typed after `plimsoll runs`, and the options that every run has for its record.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum};
use plimsoll_record::Status;

/// Where a run's record goes, and whose trial it is.
#[derive(Args, Debug, Default)]
pub(crate) struct RecordArgs {
    /// Store of run records, or off [default: $PLIMSOLL_RECORDS, else the user's data folder]
    #[arg(long, value_name = "PATH|off")]
    pub(crate) records: Option<PathBuf>,
    /// The run that this one is tried after; what differs between the two is marked
    #[arg(long, value_name = "RUN")]
    pub(crate) parent: Option<String>,
    /// The run that this one repeats: no picture is written
    #[arg(long, value_name = "RUN", hide = true)]
    pub(crate) repeat_of: Option<String>,
    /// The id that the run is recorded under, made by whoever started it
    #[arg(long, value_name = "ID", hide = true, value_parser = run_id)]
    pub(crate) run_id: Option<String>,
}

fn run_id(text: &str) -> Result<String, String> {
    let is_id = (1..=60).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if is_id { Ok(text.to_owned()) } else { Err("expected letters, digits and dashes".to_owned()) }
}

/// A run is named by its id, the beginning or last part of it, or `last`.
#[derive(Args, Debug)]
pub(crate) struct RunsArgs {
    /// Store of run records [default: $PLIMSOLL_RECORDS, else the user's data folder]
    #[arg(long, value_name = "PATH", global = true)]
    pub(crate) records: Option<PathBuf>,
    /// By what runs are judged [default: the nearest plimsoll-criteria.yaml, from here upwards]
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) criteria: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
    #[command(subcommand)]
    pub(crate) verb: RunsVerb,
}

/// How results are printed; tables where nothing is said.
#[derive(Args, Clone, Copy, Debug)]
#[group(multiple = false)]
pub(crate) struct FormatArgs {
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print Markdown tables
    #[arg(long, global = true)]
    pub(crate) md: bool,
    /// Print CSV
    #[arg(long, global = true)]
    pub(crate) csv: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RunsVerb {
    /// The newest runs, with their three gates
    List {
        /// Only runs that ended so: done, refused, failed, cancelled
        #[arg(long, value_name = "STATUS")]
        status: Option<StatusArg>,
        /// At most so many, 0 for all
        #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
        limit: usize,
    },
    /// All that is known of a run: conditions, load and quality apart
    Show {
        run: String,
        /// Print the plan that was carried out, as JSON
        #[arg(long)]
        plan: bool,
    },
    /// What differs between runs, and what it cost
    Compare {
        #[arg(required = true, num_args = 2..)]
        runs: Vec<String>,
    },
    /// A run's ancestors and trials, with what each changed
    Tree { run: String },
    /// A person's verdict, or a measurement against another run's picture
    Judge {
        run: String,
        /// Whether the output serves its purpose
        #[arg(long, value_enum)]
        verdict: Option<VerdictName>,
        /// Why, in words
        #[arg(long, requires = "verdict")]
        note: Option<String>,
        /// A named check, such as identity=pass; may be given more than once
        #[arg(long = "check", value_name = "NAME=pass|fail", requires = "verdict")]
        checks: Vec<CheckArg>,
        /// Measure the picture against this run's (PSNR, SSIM)
        #[arg(long, value_name = "RUN")]
        reference: Option<String>,
    },
    /// Run it again, unchanged, to judge whether the load can be carried again and again
    Repeat {
        run: String,
        /// How often
        #[arg(short = 'n', long, value_name = "N", default_value_t = 3)]
        count: u32,
    },
    /// The one change to try next, with what the planner predicts for it
    Next {
        run: String,
        /// Seconds that a run may take, in place of the criteria's
        #[arg(long, value_name = "SECONDS")]
        time_limit: Option<f64>,
    },
    /// Run what `next` proposes, as a trial of this run
    Try {
        run: String,
        /// Seconds that a run may take, in place of the criteria's
        #[arg(long, value_name = "SECONDS")]
        time_limit: Option<f64>,
        /// The new value, where only a person knows one: a prompt, a model
        #[arg(long, value_name = "VALUE")]
        value: Option<String>,
        /// A change of your own in place of the proposed one, such as width=96; more than one axis is marked
        #[arg(long = "set", value_name = "FIELD=VALUE", conflicts_with = "value")]
        sets: Vec<SetArg>,
        /// Where the picture goes [default: beside the run's, as NAME-try1.png]
        #[arg(short, long, value_name = "OUT.png")]
        output: Option<PathBuf>,
    },
    /// Take over records of other software (YAML, JSON or CSV), and check them
    Import {
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Take records that lack fields, too
        #[arg(long)]
        partial: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum VerdictName {
    Pass,
    Fail,
}

/// A status as typed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatusArg(pub(crate) Status);

impl FromStr for StatusArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<_> = Status::ALL.iter().map(|status| status.word()).collect();
        Status::of(text).map(Self).ok_or_else(|| format!("expected {}", words.join(", ")))
    }
}

/// A check as typed.
#[derive(Clone, Debug)]
pub(crate) struct CheckArg {
    pub(crate) name: String,
    pub(crate) is_pass: bool,
}

impl FromStr for CheckArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, verdict) = text.split_once('=').unwrap_or((text, ""));
        let is_pass = match verdict {
            "pass" => true,
            "fail" => false,
            _ => return Err("expected NAME=pass or NAME=fail".to_owned()),
        };
        let name = name.trim().to_owned();
        if name.is_empty() {
            Err("the check has no name".to_owned())
        } else {
            Ok(Self { name, is_pass })
        }
    }
}

/// A change as typed.
#[derive(Clone, Debug)]
pub(crate) struct SetArg {
    pub(crate) field: String,
    pub(crate) value: String,
}

impl FromStr for SetArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (field, value) = text.split_once('=').ok_or("expected FIELD=VALUE")?;
        Ok(Self { field: field.trim().to_owned(), value: value.to_owned() })
    }
}
