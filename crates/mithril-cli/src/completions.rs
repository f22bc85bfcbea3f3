//! `mithril completions` and `mithril man`: made of the same definitions as the help.

use crate::arguments::Arguments;
use crate::failure::{Failure, print};
use clap::CommandFactory;
use clap_complete::Shell;

/// Runs `mithril completions`.
pub(crate) fn print_completions(shell: Shell) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "mithril", &mut text);
    print_text(&text)
}

/// Runs `mithril man`: one page, with a section for every verb.
pub(crate) fn print_manual() -> Result<(), Failure> {
    let mut command = Arguments::command();
    command.build();
    let mut text = Vec::new();
    let page = clap_mangen::Man::new(command.clone());
    let failed = |error: std::io::Error| Failure::write("stdout", &error);
    page.render(&mut text).map_err(failed)?;
    for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
        let page = clap_mangen::Man::new(verb.clone());
        let title = format!("\n.SH \"MITHRIL {}\"\n", verb.get_name().to_uppercase());
        let mut sections = Vec::new();
        page.render_description_section(&mut sections).map_err(failed)?;
        page.render_synopsis_section(&mut sections).map_err(failed)?;
        page.render_options_section(&mut sections).map_err(failed)?;
        page.render_extra_section(&mut sections).map_err(failed)?;
        text.extend(title.as_bytes());
        // Sections of a page are parts of the verb's section here.
        text.extend(String::from_utf8_lossy(&sections).replace("\n.SH ", "\n.SS ").as_bytes());
    }
    print_text(&text)
}

fn print_text(text: &[u8]) -> Result<(), Failure> {
    print(String::from_utf8_lossy(text))
}
