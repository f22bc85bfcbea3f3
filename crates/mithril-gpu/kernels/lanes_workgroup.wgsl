// Lanes that vote and add through workgroup memory: for any size of subgroup. Stands behind a kernel's own file, which
// defines `INVOCATIONS`, 32 times a number of streams up to four, and `run`.

// Lanes that need a byte: three sets for four streams, as one is read while the next is filled and one is cleared.
var<workgroup> needing: array<atomic<u32>, 12>;
var<workgroup> parts: array<i32, 32>;

// Which lanes of a stream need a byte. Every invocation calls it, in the order of steps, which count from 0.
fn vote(step: u32, stream: u32, lane: u32, needs: bool) -> u32 {
    let turn = 4u * (step % 3u) + stream;
    if needs {
        atomicOr(&needing[turn], 1u << lane);
    }
    workgroupBarrier();
    if lane == 0u {
        atomicStore(&needing[4u * ((step + 2u) % 3u) + stream], 0u);
    }
    return atomicLoad(&needing[turn]);
}

// The sum of all lanes of the only stream, which lane 0 is given.
fn sum_of_lanes(lane: u32, value: i32) -> i32 {
    parts[lane] = value;
    workgroupBarrier();
    var total = 0;
    if lane == 0u {
        for (var other = 0u; other < 32u; other++) {
            total += parts[other];
        }
    }
    workgroupBarrier();
    return total;
}

@compute @workgroup_size(INVOCATIONS)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) invocation: u32) {
    if invocation < 12u {
        atomicStore(&needing[invocation], 0u);
    }
    workgroupBarrier();
    run(workgroup, invocation);
}
