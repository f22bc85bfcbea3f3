//! How data is coded: arguments that several verbs share.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use mithril::{Coding, Effort};

/// How much work may go into size. The names are those of the library, which shells can complete.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct EffortArgument {
    /// How much work may go into size
    #[arg(long, default_value = Effort::Fast.name(), value_parser = effort_parser())]
    effort: Effort,
}

impl EffortArgument {
    pub(crate) fn get(self) -> Effort {
        self.effort
    }
}

/// Arguments of every verb that codes whole files.
#[derive(Debug, Clone, Args)]
pub(crate) struct CodingArguments {
    #[command(flatten)]
    effort: EffortArgument,
    /// Level of zstd and brotli, where data with repeats is handed to them; by default the effort decides
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=22))]
    level: Option<i32>,
    /// Threads; 0 is one per core
    #[arg(long, default_value_t = 0, value_name = "N")]
    threads: usize,
}

impl CodingArguments {
    /// What the library calls them.
    pub(crate) fn coding(&self) -> Coding {
        let mut coding = Coding::default().with_effort(self.effort()).with_threads(self.threads);
        coding.level = self.level;
        coding
    }

    /// How much work may go into size.
    pub(crate) fn effort(&self) -> Effort {
        self.effort.get()
    }
}

fn effort_parser() -> impl TypedValueParser<Value = Effort> {
    PossibleValuesParser::new(Effort::ALL.map(Effort::name))
        .map(|name| Effort::from_name(&name).expect("one of the names that are possible"))
}
