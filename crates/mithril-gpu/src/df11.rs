//! DFloat11 runs on a GPU, some workgroups at a time.

use crate::run::{Buffers, Grid, words};
use crate::{Gpu, GpuError};
use mithril_codec::CodecError;
use mithril_codec::df11::{Coded, Geometry, Parts};

pub(crate) const KERNEL: &str = include_str!("../kernels/df11_decode.wgsl");

/// Coded bytes of a batch: with its signs and elements it stays far below the 128 MiB that every adapter binds.
const BATCH_LEN: usize = 8 << 20;

/// Workgroups along one dimension of the grid.
const GRID_WIDTH: usize = 1024;

impl Gpu {
    /// Decodes a run of weights to little-endian BF16 numbers.
    ///
    /// # Errors
    /// When the run is damaged, as [`Coded`] and its two-phase decoder on the CPU find too; or when the device fails.
    pub fn decode_df11(&self, parts: Parts<'_>, geometry: Geometry) -> Result<Vec<u8>, GpuError> {
        let coded = Coded::new(parts, geometry)?;
        let mut out = vec![0; 2 * coded.n_elements()];
        let mut buffers = Buffers::default();
        let workgroup_len = (geometry.threads_per_block() * geometry.bytes_per_thread()) as usize;
        let per_batch = (BATCH_LEN / workgroup_len).max(1);
        for first in (0..coded.n_workgroups()).step_by(per_batch) {
            let workgroups = first..(first + per_batch).min(coded.n_workgroups());
            let elements = coded.elements(workgroups.clone());
            if elements.is_empty() {
                continue;
            }
            let is_last = elements.end == coded.n_elements();
            let starts = workgroups
                .clone()
                .map(|workgroup| coded.elements(workgroup..workgroup + 1).start)
                .chain([elements.end])
                .map(|start| word(start - elements.start));
            let encoded_at = first * workgroup_len;
            // The last code may reach into the next workgroup, whose first gap says where it must end.
            let encoded_end = (workgroups.end * workgroup_len + 8).min(parts.encoded_exponent.len());
            let gaps_len = geometry.threads_per_block() as usize * 5 / 8;
            let gaps_end = (workgroups.end * gaps_len + 1).min(parts.gaps.len());
            let n_rows = parts.luts.len() / 256;
            let params = words([
                geometry.threads_per_block(),
                8 * geometry.bytes_per_thread(),
                word(n_rows),
                word(elements.len()),
                word(parts.encoded_exponent.len() - encoded_at),
                u32::from(is_last),
                word(workgroups.len()),
            ]);
            let grid = Grid {
                x: word(workgroups.len().min(GRID_WIDTH)),
                y: word(workgroups.len().div_ceil(GRID_WIDTH)),
            };
            let inputs: [&[u8]; 6] = [
                &params,
                parts.luts,
                &parts.encoded_exponent[encoded_at..encoded_end],
                &parts.sign_mantissa[elements.clone()],
                &words(starts),
                &parts.gaps[first * gaps_len..gaps_end],
            ];
            let room = &mut out[2 * elements.start..2 * elements.end];
            if self.run(&self.df11, &mut buffers, &inputs, grid, room)?.is_some() {
                return Err(CodecError::Corrupt { what: "DF11 codes that do not end where they must" }.into());
            }
        }
        Ok(out)
    }
}

fn word(number: usize) -> u32 {
    u32::try_from(number).expect("runs have fewer than 2^32 elements and 2^31 bytes")
}
