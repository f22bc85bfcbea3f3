//! One run of a kernel: buffers in, dispatch, elements and fault back. Buffers are kept between runs.

use crate::{Gpu, GpuError};
use std::sync::mpsc;

/// No workgroup has a fault.
const NO_FAULT: u32 = u32::MAX;

/// The buffers of a kernel, which grow as runs need them and are used again.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    inputs: Vec<wgpu::Buffer>,
    output: Option<wgpu::Buffer>,
    fault: Option<wgpu::Buffer>,
    read_back: Option<wgpu::Buffer>,
}

/// How many workgroups to run, in two dimensions as one may be too short.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    pub(crate) x: u32,
    pub(crate) y: u32,
}

impl Gpu {
    /// Runs a kernel whose bindings are `inputs` in order, then the output, then the fault. Copies the output to `out`,
    /// whose length may be odd; returns the number of the first workgroup with a fault.
    pub(crate) fn run(
        &self,
        pipeline: &wgpu::ComputePipeline,
        buffers: &mut Buffers,
        inputs: &[&[u8]],
        grid: Grid,
        out: &mut [u8],
    ) -> Result<Option<u32>, GpuError> {
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let out_len = (out.len() as u64).next_multiple_of(4).max(4);
        self.fill(buffers, inputs, out_len);
        let fault_at = out_len;
        let (Some(output), Some(fault), Some(read_back)) =
            (&buffers.output, &buffers.fault, &buffers.read_back)
        else {
            unreachable!("`fill` makes them");
        };
        let bound = buffers.inputs[..inputs.len()].iter().zip(inputs).map(|(buffer, input)| {
            // Kernels ask how long an array is: that of the data, not that of a buffer which was larger before.
            let len = (input.len() as u64).next_multiple_of(4).max(16);
            wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer,
                offset: 0,
                size: wgpu::BufferSize::new(len),
            })
        });
        let outputs = [(output, out_len), (fault, 4)].map(|(buffer, len)| {
            wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer,
                offset: 0,
                size: wgpu::BufferSize::new(len),
            })
        });
        let entries: Vec<_> = (0..)
            .zip(bound.chain(outputs))
            .map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource })
            .collect();
        let bind_group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.get_bind_group_layout(0),
            entries: &entries,
        });
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        // Elements share words and are put in by `or`.
        encoder.clear_buffer(output, 0, Some(out_len));
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            pass.set_pipeline(pipeline);
            pass.set_bind_group(0, &bind_group, &[]);
            pass.dispatch_workgroups(grid.x, grid.y, 1);
        }
        encoder.copy_buffer_to_buffer(output, 0, read_back, 0, out_len);
        encoder.copy_buffer_to_buffer(fault, 0, read_back, fault_at, 4);
        self.queue.submit([encoder.finish()]);
        let (sender, receiver) = mpsc::channel();
        read_back.map_async(wgpu::MapMode::Read, ..fault_at + 4, move |mapped| {
            // The receiver waits for exactly this.
            let _ = sender.send(mapped);
        });
        let device_fault = |reason: String| GpuError::Device { reason };
        self.device
            .poll(wgpu::PollType::wait_indefinitely())
            .map_err(|error| device_fault(error.to_string()))?;
        if let Some(error) = crate::device::wait(scope.pop()) {
            return Err(device_fault(error.to_string()));
        }
        receiver
            .recv()
            .map_err(|error| device_fault(error.to_string()))?
            .map_err(|error| device_fault(error.to_string()))?;
        let fault = {
            let mapped = read_back
                .get_mapped_range(..fault_at + 4)
                .map_err(|error| device_fault(error.to_string()))?;
            out.copy_from_slice(&mapped[..out.len()]);
            let mut word = [0; 4];
            word.copy_from_slice(&mapped[mapped.len() - 4..]);
            u32::from_le_bytes(word)
        };
        read_back.unmap();
        Ok((fault != NO_FAULT).then_some(fault))
    }

    /// Makes buffers large enough and writes the inputs.
    fn fill(&self, buffers: &mut Buffers, inputs: &[&[u8]], out_len: u64) {
        use wgpu::BufferUsages as Usage;
        let make = |len: u64, usage: Usage| {
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: len,
                usage,
                mapped_at_creation: false,
            })
        };
        let grow = |buffer: &mut Option<wgpu::Buffer>, len: u64, usage: Usage| {
            if buffer.as_ref().is_none_or(|buffer| buffer.size() < len) {
                *buffer = Some(make(len, usage));
            }
        };
        for (idx, input) in inputs.iter().enumerate() {
            let len = (input.len() as u64).next_multiple_of(4).max(16);
            let usage = Usage::STORAGE | Usage::COPY_DST;
            match buffers.inputs.get_mut(idx) {
                Some(buffer) if buffer.size() >= len => {}
                Some(buffer) => *buffer = make(len, usage),
                None => buffers.inputs.push(make(len, usage)),
            }
            let whole = input.len() / 4 * 4;
            self.queue.write_buffer(&buffers.inputs[idx], 0, &input[..whole]);
            // Writes have whole words, and what stands behind the data must not be what stood there before.
            let mut last = vec![0; usize::try_from(len).expect("as long as the input") - whole];
            last[..input.len() - whole].copy_from_slice(&input[whole..]);
            self.queue.write_buffer(&buffers.inputs[idx], whole as u64, &last);
        }
        grow(&mut buffers.output, out_len, Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST);
        grow(&mut buffers.fault, 4, Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST);
        grow(&mut buffers.read_back, out_len + 4, Usage::MAP_READ | Usage::COPY_DST);
        if let Some(fault) = &buffers.fault {
            self.queue.write_buffer(fault, 0, &NO_FAULT.to_le_bytes());
        }
    }
}

/// Numbers as the bytes of a buffer.
pub(crate) fn words(numbers: impl IntoIterator<Item = u32>) -> Vec<u8> {
    numbers.into_iter().flat_map(u32::to_le_bytes).collect()
}
