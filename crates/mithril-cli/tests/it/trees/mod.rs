//! Random trees of files through `compress`, `inspect`, `verify`, `extract`, `repair` and `decompress`, by file, pipe and
//! redirect. The model is the bytes: what must lie at every place is known before and after everything that is done.
//!
//! The number of cases is that of every run. `MITHRIL_FAULTS=full cargo test --release -p mithril-cli --test it trees` runs
//! those of a release.

mod content;
mod directories;
mod operations;
mod world;

use operations::Operation;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use world::World;

/// Few cases in every run, more for a release.
fn config(quick: u32, full: u32, seed: u64) -> ProptestConfig {
    let is_full = std::env::var_os("MITHRIL_FAULTS").is_some_and(|tier| tier == "full");
    ProptestConfig {
        cases: if is_full { full } else { quick },
        failure_persistence: None,
        max_shrink_iters: 400,
        rng_seed: RngSeed::Fixed(seed),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(80, 3000, 1))]

    #[test]
    fn files_of_random_trees_come_back_or_are_refused(
        tree in content::tree(),
        operations in operations::operations(),
    ) {
        let mut world = World::new("trees-files", &tree);
        world.check("making the trees");
        operations.iter().for_each(|operation| operation.run(&mut world));
    }
}

proptest! {
    #![proptest_config(config(50, 2000, 2))]

    #[test]
    fn random_trees_come_back_or_are_refused(
        tree in content::tree(),
        packing in operations::packing(),
        packed_before in prop::collection::vec(any::<(prop::sample::Index, bool)>(), 0..3),
        many in prop::collection::vec(any::<prop::sample::Index>(), 2..5),
        (which, at) in any::<(prop::sample::Index, prop::sample::Index)>(),
    ) {
        let mut world = World::new("trees-whole", &tree);
        for (what, is_framed) in packed_before {
            Operation::beside(what, is_framed).run(&mut world);
        }
        for root in ["in", "tuned"] {
            directories::pack(&mut world, root, &packing, &which, &at);
            world.check(root);
        }
        directories::pack_many(&mut world, &many);
        world.check("several files");
    }
}
