// Lanes that vote and add as a subgroup: for devices whose subgroups have 32 lanes, no fewer and no more, which the host
// makes sure of. Stands behind a kernel's own file, which defines `INVOCATIONS` and `run`. A stream is a subgroup, so a
// step needs no barrier. WGSL asks for `enable subgroups;`, which naga does not know yet: it takes these functions without.

// As in `lanes_workgroup.wgsl`.
fn vote(step: u32, stream: u32, lane: u32, needs: bool) -> u32 {
    return subgroupBallot(needs).x;
}

// As in `lanes_workgroup.wgsl`.
fn sum_of_lanes(lane: u32, value: i32) -> i32 {
    return subgroupAdd(value);
}

@compute @workgroup_size(INVOCATIONS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    run(workgroup, 32u * subgroup + lane);
}
