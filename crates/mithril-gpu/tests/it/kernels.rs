//! What drivers are given: every kernel is valid and translates to SPIR-V and to Metal's language.

use mithril_gpu::KERNELS;
use naga::valid::{Capabilities, ValidationFlags, Validator};

#[test]
fn every_kernel_translates_to_spirv_and_to_metal() {
    assert_eq!(KERNELS.len(), 8);
    for (name, source) in KERNELS {
        let module = naga::front::wgsl::parse_str(source)
            .unwrap_or_else(|error| panic!("{name}: {}", error.emit_to_string(source)));
        // No capability beyond those of every device, but for the forms that are chosen where subgroups are.
        let is_subgroup = name.ends_with("_subgroup");
        let capabilities = if is_subgroup { Capabilities::SUBGROUP } else { Capabilities::empty() };
        let info = Validator::new(ValidationFlags::all(), capabilities)
            .validate(&module)
            .unwrap_or_else(|error| panic!("{name}: {error:?}"));
        let mut options = naga::back::spv::Options::default();
        // Ballots came with this version.
        options.lang_version = if is_subgroup { (1, 3) } else { options.lang_version };
        let spirv = naga::back::spv::write_vec(&module, &info, &options, None)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(spirv[0], 0x0723_0203, "{name}: the magic of SPIR-V");
        let (metal, _) = naga::back::msl::write_string(
            &module,
            &info,
            &naga::back::msl::Options { lang_version: (2, 4), ..Default::default() },
            &naga::back::msl::PipelineOptions::default(),
        )
        .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(metal.contains("kernel void"), "{name}");
    }
}
