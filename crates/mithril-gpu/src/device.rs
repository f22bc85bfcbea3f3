//! A device with its kernels.

use crate::lanes::Lanes;
use crate::{GpuError, df11, ecq, frame, gemv};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Invocations of the largest workgroup among the kernels.
const INVOCATIONS: u32 = 256;

/// A GPU, or what a driver offers in place of one, with the kernels built for it.
#[derive(Debug)]
pub struct Gpu {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) df11: wgpu::ComputePipeline,
    pub(crate) rans8: wgpu::ComputePipeline,
    pub(crate) symbols: wgpu::ComputePipeline,
    pub(crate) levels: wgpu::ComputePipeline,
    pub(crate) fixed12: wgpu::ComputePipeline,
    info: GpuInfo,
}

/// What a device is and what it can hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInfo {
    /// Name of the adapter.
    pub name: String,
    /// The interface to it: Vulkan or Metal.
    pub backend: String,
    /// Discrete, integrated, virtual or a CPU.
    pub kind: String,
    /// Driver and its version.
    pub driver: String,
    /// Smallest and largest subgroup.
    pub subgroup: (u32, u32),
    /// Bytes that a workgroup shares.
    pub workgroup_memory: u32,
    /// Invocations of a workgroup.
    pub workgroup_invocations: u32,
    /// Bytes of the largest buffer that a kernel can see.
    pub buffer_len: u64,
}

impl Gpu {
    /// Takes the fastest adapter that drivers offer. `WGPU_ADAPTER_NAME` and `WGPU_BACKEND` choose among several.
    ///
    /// # Errors
    /// When there is none, or its limits are too small for the kernels.
    pub fn new() -> Result<Self, GpuError> {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle_from_env());
        let options = wgpu::RequestAdapterOptions {
            power_preference: wgpu::PowerPreference::HighPerformance,
            ..Default::default()
        };
        let adapter = wait(instance.request_adapter(&options))
            .map_err(|error| GpuError::NoAdapter { reason: error.to_string() })?;
        let (about, limits) = (adapter.get_info(), adapter.limits());
        let info = GpuInfo {
            name: about.name,
            backend: format!("{:?}", about.backend),
            kind: format!("{:?}", about.device_type),
            driver: format!("{} {}", about.driver, about.driver_info),
            subgroup: (about.subgroup_min_size, about.subgroup_max_size),
            workgroup_memory: limits.max_compute_workgroup_storage_size,
            workgroup_invocations: limits.max_compute_invocations_per_workgroup,
            buffer_len: limits.max_storage_buffer_binding_size.min(limits.max_buffer_size),
        };
        info.check()?;
        // The adapter's own limits: buffers are as large as it allows.
        let has_subgroups =
            info.subgroup == (32, 32) && adapter.features().contains(wgpu::Features::SUBGROUP);
        let required_features =
            if has_subgroups { wgpu::Features::SUBGROUP } else { wgpu::Features::empty() };
        let descriptor =
            wgpu::DeviceDescriptor { required_limits: limits, required_features, ..Default::default() };
        let (device, queue) = wait(adapter.request_device(&descriptor))
            .map_err(|error| GpuError::Device { reason: error.to_string() })?;
        let df11 = pipeline(&device, "df11_decode", df11::KERNEL);
        let lanes = |kernel: &Lanes| match has_subgroups {
            true => pipeline(&device, kernel.subgroup_name, kernel.subgroup),
            false => pipeline(&device, kernel.name, kernel.any),
        };
        let (rans8, symbols, levels) =
            (lanes(&frame::KERNEL), lanes(&ecq::KERNEL), lanes(&gemv::LEVELS_KERNEL));
        let fixed12 = pipeline(&device, "fixed12_gemv", gemv::FIXED12_KERNEL);
        Ok(Self { device, queue, df11, rans8, symbols, levels, fixed12, info })
    }

    /// What this device is.
    #[must_use]
    pub fn info(&self) -> &GpuInfo {
        &self.info
    }
}

impl GpuInfo {
    fn check(&self) -> Result<(), GpuError> {
        let needs = [
            ("workgroup invocations", u64::from(self.workgroup_invocations), u64::from(INVOCATIONS)),
            ("buffer length", self.buffer_len, 1 << 27),
        ];
        for (what, has, needs) in needs {
            if has < needs {
                return Err(GpuError::Limit { adapter: self.name.clone(), what, has, needs });
            }
        }
        Ok(())
    }
}

fn pipeline(device: &wgpu::Device, name: &str, kernel: &str) -> wgpu::ComputePipeline {
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: Some(name),
        source: wgpu::ShaderSource::Wgsl(kernel.into()),
    });
    device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some(name),
        layout: None,
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions::default(),
        cache: None,
    })
}

/// Waits for a future of wgpu. Those that open adapters and devices are ready at once on native systems.
pub(crate) fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::yield_now();
    }
}
