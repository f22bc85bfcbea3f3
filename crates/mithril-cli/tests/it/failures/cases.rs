//! Every command on its usual input, as data.

/// What a command writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writes {
    /// Nothing but its report.
    Nothing,
    /// A file that appears whole or not at all.
    File,
    /// A directory that appears whole or not at all.
    Directory,
    /// A directory that is filled file by file, where the next run goes on.
    Files,
    /// A file for each of several inputs, whole or not there; all of them are written again with `--force`.
    Each,
    /// Several files that get their names together in the end; all of them are written again with `--force`.
    Together,
    /// Files that are gone when it ends.
    Scratch,
    /// Objects of a store.
    Store,
}

/// What goes to stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stdout {
    /// A report.
    Report,
    /// A report if `--json` asks for it.
    Json,
    /// The output, if it is named `-`.
    Output,
    /// Nothing at all.
    Nothing,
}

/// A command line for a row of the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    pub(super) row: &'static str,
    /// `@name` is a file of the shelf, `@out` what is written.
    pub(super) line: &'static str,
    /// What is damaged, emptied, changed: the first file of the line unless it is said. None for commands that take none.
    pub(super) input: Option<&'static str>,
    pub(super) writes: Writes,
    pub(super) stdout: Stdout,
    /// The same with a base that is not the right one.
    pub(super) wrong_base: Option<&'static str>,
    /// A line with a large input, and the file that changes while it is read.
    pub(super) changes: Option<(&'static str, &'static str)>,
}

impl Case {
    fn of(self, input: &'static str) -> Self {
        Self { input: Some(input), ..self }
    }

    fn writes(self, writes: Writes) -> Self {
        let stdout = if writes == Writes::Store { Stdout::Report } else { Stdout::Json };
        Self { writes, stdout, ..self }
    }

    /// Says nothing on stdout.
    fn silent(self) -> Self {
        Self { stdout: Stdout::Nothing, ..self }
    }

    /// Writes a file, or stdout where that is named.
    fn streams(self) -> Self {
        Self { writes: Writes::File, stdout: Stdout::Output, ..self }
    }

    fn wrong_base(self, line: &'static str) -> Self {
        Self { wrong_base: Some(line), ..self }
    }

    fn changes(self, line: &'static str, input: &'static str) -> Self {
        Self { changes: Some((line, input)), ..self }
    }

    /// The words of the command: those of its row up to the first that is an option or in capitals.
    pub(super) fn command(&self) -> String {
        command(self.row)
    }
}

/// The command that a row is about.
pub(super) fn command(row: &str) -> String {
    let is_verb = |word: &&str| word.starts_with(|letter: char| letter.is_ascii_lowercase());
    row.split(' ').take_while(is_verb).collect::<Vec<_>>().join(" ")
}

fn case(row: &'static str, line: &'static str) -> Case {
    let input = line.split(' ').find_map(|word| word.strip_prefix('@')).filter(|name| *name != "out");
    Case {
        row,
        line,
        input,
        writes: Writes::Nothing,
        stdout: Stdout::Report,
        wrong_base: None,
        changes: None,
    }
}

/// In the order of the table.
pub(super) fn cases() -> Vec<Case> {
    use Writes::{Directory, Each, File, Files, Scratch, Store, Together};
    let mut cases = vec![
        case("compress", "compress @base.safetensors -o @out")
            .streams()
            .wrong_base("compress @tuned.safetensors -o @out --base @missing.safetensors")
            .changes("compress @large/model.safetensors -o @out --threads 1", "large/model.safetensors"),
        case("compress DIR", "compress @tree -o @out")
            .of("tree/model.safetensors")
            .writes(Files)
            .wrong_base("compress @tree -o @out --base @missing.safetensors")
            .changes("compress @large -o @out --threads 1", "large/model.safetensors"),
        case("decompress", "decompress @base.mckp -o @out")
            .streams()
            .wrong_base("decompress @tuned.mckp -o @out --base @other.safetensors")
            .changes("decompress @large.mckp -o @out --threads 1", "large.mckp"),
        case("decompress DIR", "decompress @tree.mckp -o @out")
            .of("tree.mckp/model.safetensors.mckp")
            .writes(Files)
            .wrong_base("decompress @tuned-tree.mckp -o @out --base @other.safetensors")
            .changes(
                "decompress @large-tree.mckp -o @out --threads 1",
                "large-tree.mckp/model.safetensors.mckp",
            ),
        case("inspect", "inspect @base.mckp"),
        case("inspect --html", "inspect @base.mckp --html @out")
            .writes(File)
            .silent()
            .wrong_base("inspect @tuned.mckp --html @out --base @other.safetensors"),
        case("verify", "verify @base.mckp").wrong_base("verify @tuned.mckp --deep --base @other.safetensors"),
        case("extract", "extract @base.mckp layer.0.matrix -o @out")
            .streams()
            .wrong_base("extract @tuned.mckp layer.0.matrix -o @out --base @other.safetensors"),
        case("compare", "compare @base.mckp @base.mckp")
            .wrong_base("compare @tuned.mckp @tuned.safetensors --base @other.safetensors"),
        case("diff", "diff @base.mckp @base.mckp")
            .wrong_base("diff @tuned.mckp @tuned.safetensors --base @other.safetensors"),
        case("estimate", "estimate @base.safetensors"),
        case("repair", "repair @base.mckp -o @out")
            .writes(File)
            .wrong_base("repair @tuned.mckp -o @out --to safetensors --base @other.safetensors"),
        case("convert", "convert @matrices.safetensors --to df11 -o @out").writes(Directory).changes(
            "convert @large/model.safetensors --to df11 -o @out --threads 1",
            "large/model.safetensors",
        ),
        case("merge", "merge @part-1 @part-2 -o @out")
            .of("part-1/down.safetensors")
            .writes(Directory)
            .changes("merge @large-part -o @out --save-single-file", "large-part/w.safetensors"),
        case("quantize", "quantize @matrices.safetensors --bpw 4 -o @out").writes(Directory).changes(
            "quantize @large/model.safetensors --bpw 4 -o @out --threads 1",
            "large/model.safetensors",
        ),
        case("diagnose", "diagnose @coded").of("coded/down.safetensors"),
        case("bench", "bench @base.safetensors --repeat 1"),
        case("bench --file", "bench @base.safetensors --repeat 1 --file --scratch @scratch").writes(Scratch),
        case("demo", "demo"),
        case("completions", "completions bash"),
        case("man", "man"),
        case("dictionary train", "dictionary train @lines.jsonl --split jsonl --size 4K --no-search -o @out")
            .writes(File),
        case("dictionary update", "dictionary update @one.dict @lines.jsonl --split jsonl -o @out")
            .writes(File),
        case("dictionary inspect", "dictionary inspect @one.dict"),
        case("dictionary inspect --extract", "dictionary inspect @groups.mdic --extract @out")
            .writes(Together),
        case("dictionary evaluate", "dictionary evaluate @one.dict @lines.jsonl --split jsonl"),
        case("dictionary explain", "dictionary explain @one.dict @lines.jsonl --split jsonl"),
        case("dictionary compress", "dictionary compress @one.dict @lines.jsonl --split jsonl -o @out")
            .streams(),
        case("dictionary compress --each", "dictionary compress @one.dict @records --each")
            .of("records/1.json")
            .writes(Each)
            .silent(),
        case("dictionary decompress", "dictionary decompress @one.dict @lines.mrec -o @out")
            .of("lines.mrec")
            .streams()
            .wrong_base("dictionary decompress @other.dict @lines.mrec -o @out"),
        case("store save", "store @chain save step_3 @tuned.safetensors --previous step_2")
            .of("tuned.safetensors")
            .writes(Store)
            .wrong_base("store @broken save step_3 @tuned.safetensors --previous step_2")
            .changes(
                "store @chain save step_3 @large/model.safetensors --threads 1",
                "large/model.safetensors",
            ),
        case("store load", "store @single load step_1 -o @out")
            .of("single/data/*")
            .streams()
            .wrong_base("store @broken load step_2 -o @out"),
        case("store load DIR", "store @several load step_1 -o @out")
            .of("several/data/*")
            .writes(Together)
            .silent(),
        case("store extract", "store @single extract step_1 layer.0.matrix -o @out")
            .of("single/data/*")
            .streams()
            .wrong_base("store @broken extract step_2 layer.0.matrix -o @out"),
        case("store export", "store @single export step_1 --to safetensors -o @out")
            .of("single/data/*")
            .streams()
            .wrong_base("store @broken export step_2 --to safetensors -o @out"),
        case("store list", "store @chain list").of("chain/manifests/step_1.json"),
        case("store log", "store @chain log step_2").of("chain/manifests/step_1.json"),
        case("store show", "store @chain show step_1").of("chain/manifests/step_1.json"),
        case("store diff", "store @chain diff step_1 step_2").of("chain/manifests/step_1.json"),
        case("store verify", "store @chain verify --deep")
            .of("chain/data/*")
            .wrong_base("store @broken verify --deep"),
        case("store stats", "store @chain stats").of("chain/manifests/step_1.json"),
        case("store stats --html", "store @chain stats --html @out")
            .of("chain/manifests/step_1.json")
            .writes(File),
        case("store gc", "store @littered gc --min-age 0").of("littered/manifests/step_1.json").writes(Store),
        case("store rebase", "store @chain rebase step_2")
            .of("chain/data/*")
            .writes(Store)
            .wrong_base("store @broken rebase step_2"),
        case("store delete", "store @chain delete step_1").of("chain/manifests/step_1.json").writes(Store),
    ];
    if cfg!(feature = "gpu") {
        cases.extend([
            case("gpu info", "gpu info"),
            case("gpu verify", "gpu verify @base.mckp"),
            case("gpu bench", "gpu bench @base.mckp"),
        ]);
    }
    cases
}
