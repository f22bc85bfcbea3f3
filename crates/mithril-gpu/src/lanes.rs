//! Kernels in two forms: the same text before one of two ways in which lanes know of each other.

/// A kernel of 32 lanes for each stream.
pub(crate) struct Lanes {
    pub(crate) name: &'static str,
    /// For any device.
    pub(crate) any: &'static str,
    pub(crate) subgroup_name: &'static str,
    /// For devices whose subgroups have 32 lanes.
    pub(crate) subgroup: &'static str,
}

macro_rules! lanes {
    ($name:literal) => {
        $crate::lanes::Lanes {
            name: $name,
            any: concat!(
                include_str!(concat!("../kernels/", $name, ".wgsl")),
                include_str!("../kernels/lanes_workgroup.wgsl")
            ),
            subgroup_name: concat!($name, "_subgroup"),
            subgroup: concat!(
                include_str!(concat!("../kernels/", $name, ".wgsl")),
                include_str!("../kernels/lanes_subgroup.wgsl")
            ),
        }
    };
}
pub(crate) use lanes;
