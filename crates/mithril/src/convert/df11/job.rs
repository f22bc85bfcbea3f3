//! Counting, planning and writing the modules of a repository.
//!
//! The exponents of every module are counted first; then the size of everything is known, the files are laid out, and
//! modules are coded in any order, on all threads, straight to their places. Only headers, counts and the modules being
//! coded are in memory.

use super::SHAPES_FILE;
use super::encode::{EncodeOptions, EncodeSummary, EncodedModule, Outcome};
use super::patterns::ModuleSource;
use super::spread::{Spread, byte_len, copy_tensor};
use crate::Error;
use crate::convert::output::SafetensorsFile;
use crate::convert::{MEMORY_LEN, OutputDirectory, Progress, Repository};
use crate::options::thread_count;
use crate::pipeline::tasks::{self, Budget};
use mithril_codec::df11::{Encoder, Geometry, Plan, Profile, Unencodable, WorkgroupSizes};
use mithril_format::df11::{ModuleBytes, Part, damaged, split_positions};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// All decisions: what is coded, how, and where it goes.
pub(super) struct Job<'a> {
    pub(super) repository: &'a Repository,
    output: &'a OutputDirectory,
    pub(super) sources: &'a [ModuleSource],
    /// The modules of this part.
    pub(super) own: Range<usize>,
    plans: Vec<Result<Plan, Unencodable>>,
    pub(super) geometry: Geometry,
}

impl<'a> Job<'a> {
    pub(super) fn plan(
        repository: &'a Repository,
        output: &'a OutputDirectory,
        sources: &'a [ModuleSource],
        own: Range<usize>,
        options: &EncodeOptions,
    ) -> Result<Self, Error> {
        // All parts of a model must agree on their threads, so each of them looks at every module.
        let counted = if options.shared_memory.is_some() { 0..sources.len() } else { own.clone() };
        let mut job =
            Self { repository, output, sources, own: counted, plans: Vec::new(), geometry: options.geometry };
        let plan = |_, source: &ModuleSource| {
            let mut profile = Profile::new();
            job.for_each_piece(source, |piece| {
                profile.add(piece);
                Ok(())
            })?;
            Ok(Plan::new(&profile, options.geometry))
        };
        let plans = job.for_each_own(options.threads, plan)?;
        job.plans = plans;
        if let Some(limit) = options.shared_memory {
            job.limit_shared_memory(limit, options)?;
            job.plans = job.plans.drain(own.clone()).collect();
            job.own = own;
        }
        Ok(job)
    }

    /// Gives workgroups the most threads with which no module asks for more shared memory.
    fn limit_shared_memory(&mut self, limit: u64, options: &EncodeOptions) -> Result<(), Error> {
        let most = options.geometry.threads_per_block();
        if options.geometry.bytes_per_thread() != 8 {
            return Err(Error::invalid("a limit of shared memory is for threads of 8 bytes"));
        }
        let candidates: Vec<u32> = [1024, 512, 256, 128, 64, 32].into_iter().filter(|&n| n <= most).collect();
        let demand = |idx: usize, source: &ModuleSource| {
            let Ok(plan) = &self.plans[idx] else { return Ok(vec![0; candidates.len()]) };
            let mut sizes = WorkgroupSizes::new(plan);
            self.for_each_piece(source, |piece| {
                sizes.add(piece);
                Ok(())
            })?;
            Ok(candidates.iter().map(|&threads| sizes.largest(threads)).collect())
        };
        let demands: Vec<Vec<u64>> = self.for_each_own(options.threads, demand)?;
        let fits = |(idx, &threads): (usize, &u32)| {
            let geometry = Geometry::new(threads, 8)?;
            let largest = demands.iter().map(|demand| demand[idx]).max().unwrap_or(0);
            (geometry.shared_memory_len(largest) <= limit).then_some(geometry)
        };
        let geometry = candidates.iter().enumerate().find_map(fits).ok_or_else(|| {
            Error::invalid(format!(
                "no workgroup of 32 threads or more does with {limit} bytes of shared memory"
            ))
        })?;
        self.geometry = geometry;
        for plan in &mut self.plans {
            *plan = std::mem::replace(plan, Err(Unencodable::Empty)).map(|plan| plan.with_geometry(geometry));
        }
        Ok(())
    }

    /// The results of `work` for the modules of this part, in order.
    fn for_each_own<T: Send>(
        &self,
        threads: usize,
        work: impl Fn(usize, &ModuleSource) -> Result<T, Error> + Sync,
    ) -> Result<Vec<T>, Error> {
        let own = &self.sources[self.own.clone()];
        let results: Vec<Mutex<Option<T>>> = own.iter().map(|_| Mutex::new(None)).collect();
        tasks::run(own.len(), self.thread_count(threads), |idx| {
            *results[idx].lock().unwrap_or_else(PoisonError::into_inner) = Some(work(idx, &own[idx])?);
            Ok(())
        })?;
        let take = |result: Mutex<Option<T>>| result.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(results.into_iter().filter_map(take).collect())
    }

    fn thread_count(&self, requested: usize) -> usize {
        let own = &self.sources[self.own.clone()];
        let raw_len: u64 = own.iter().map(|source| 2 * self.n_elements(source)).sum();
        thread_count(requested, own.len(), usize::try_from(raw_len).unwrap_or(usize::MAX))
    }

    fn for_each_piece(
        &self,
        source: &ModuleSource,
        mut work: impl FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut work = |piece: &[u8]| self.output.check_wanted().and_then(|()| work(piece));
        source.weights.iter().try_for_each(|&weight| self.repository.for_each_piece(weight, &mut work))
    }

    fn sizes(&self, source: &ModuleSource) -> Vec<u64> {
        let size = |&weight: &usize| self.repository.tensors()[weight].shape.iter().product();
        source.weights.iter().map(size).collect()
    }

    fn n_elements(&self, source: &ModuleSource) -> u64 {
        self.sizes(source).iter().sum()
    }

    /// The modules of this part with their plans.
    pub(super) fn planned(&self) -> impl Iterator<Item = (&ModuleSource, &Result<Plan, Unencodable>)> {
        self.sources[self.own.clone()].iter().zip(&self.plans)
    }

    pub(super) fn kept(&self) -> impl Iterator<Item = &ModuleSource> {
        self.planned().filter(|(_, plan)| plan.is_err()).map(|(source, _)| source)
    }

    /// Writes all files of weights.
    pub(super) fn write(
        &self,
        output: &OutputDirectory,
        options: &EncodeOptions,
        is_last_part: bool,
        progress: Progress<'_>,
    ) -> Result<EncodeSummary, Error> {
        let spread = Spread::new(self, options.files, is_last_part);
        let files = spread.create(self, output)?;
        let largest = self.plans.iter().flatten().map(coded_len).max().unwrap_or(0);
        let budget = Budget::new(MEMORY_LEN + largest);
        let modules = self.for_each_own(options.threads, |idx, source| {
            let n_elements = self.n_elements(source);
            let outcome = match &self.plans[idx] {
                Ok(plan) => {
                    let file = &files[spread.file_of_module[idx]];
                    self.write_module(source, plan, file, &budget, options)?
                }
                Err(reason) => Outcome::Kept(*reason),
            };
            if matches!(outcome, Outcome::Coded { .. }) {
                progress(2 * n_elements);
            }
            Ok(EncodedModule { name: source.name.clone(), n_elements, outcome })
        })?;
        let raw = |&(tensor, _): &(usize, usize)| byte_len(self.repository, tensor);
        tasks::run(spread.copied.len(), self.thread_count(options.threads), |idx| {
            let (tensor, file) = spread.copied[idx];
            copy_tensor(self.repository, tensor, &files[file])?;
            progress(byte_len(self.repository, tensor));
            Ok(())
        })?;
        let copied_len: u64 = spread.copied.iter().map(raw).sum();
        let mut summary = EncodeSummary {
            modules,
            geometry: self.geometry,
            raw_len: copied_len,
            coded_len: copied_len,
            n_files: files.len(),
            n_carried: 0,
        };
        for module in &summary.modules {
            if let Outcome::Coded { coded_len, .. } = module.outcome {
                summary.raw_len += 2 * module.n_elements;
                summary.coded_len += coded_len;
            }
        }
        Ok(summary)
    }

    /// Codes a module, checks it, and writes its six tensors.
    fn write_module(
        &self,
        source: &ModuleSource,
        plan: &Plan,
        file: &SafetensorsFile,
        budget: &Budget,
        options: &EncodeOptions,
    ) -> Result<Outcome, Error> {
        let coded_len =
            plan.n_elements() + plan.encoded_len() + plan.gaps_len() + plan.output_positions_len();
        let share = budget.take(coded_len as u64);
        let mut encoded = Vec::with_capacity(plan.encoded_len() + 8);
        let mut signs_mantissas = Vec::with_capacity(plan.n_elements());
        let mut encoder = Encoder::new(plan);
        self.for_each_piece(source, |piece| {
            encoder.push(piece, &mut encoded, &mut signs_mantissas);
            Ok(())
        })?;
        let entry_points = encoder.finish(&mut encoded);
        let mut bytes = ModuleBytes::default();
        bytes.0[Part::Luts as usize] = plan.luts().to_vec();
        bytes.0[Part::EncodedExponent as usize] = encoded;
        bytes.0[Part::SignMantissa as usize] = signs_mantissas;
        bytes.0[Part::OutputPositions as usize] = entry_points.output_positions;
        bytes.0[Part::Gaps as usize] = entry_points.gaps;
        bytes.0[Part::SplitPositions as usize] = split_positions(&self.sizes(source));
        let coded = bytes.coded(&source.name, self.geometry)?;
        let shared_memory = coded.shared_memory_len();
        if options.check {
            self.check(source, &bytes)?;
        }
        for part in Part::ALL {
            file.write(&format!("{}.{}", source.name, part.name()), 0, bytes.part(part))?;
        }
        drop(share);
        Ok(Outcome::Coded { coded_len: bytes.len() as u64, shared_memory })
    }

    /// Decodes a module and compares it with its weights, bit for bit; a GPU must be able to enter at every thread.
    fn check(&self, source: &ModuleSource, bytes: &ModuleBytes) -> Result<(), Error> {
        let coded = bytes.coded(&source.name, self.geometry)?;
        let wrong = || Error::from(damaged(&source.name, "decodes to other bits: report this"));
        coded.check_entry_points().map_err(|_| wrong())?;
        // Workgroups at a time: together about as much as the pieces of weights that they are compared with.
        const WORKGROUPS: usize = 32;
        let mut decoded = Vec::new();
        let mut n_compared = 0;
        let mut next = 0;
        self.for_each_piece(source, |piece| {
            let mut piece = piece;
            while !piece.is_empty() {
                if n_compared == decoded.len() {
                    let workgroups = next..(next + WORKGROUPS).min(coded.n_workgroups());
                    next = workgroups.end;
                    decoded.resize(2 * coded.elements(workgroups.clone()).len(), 0);
                    coded.decode_workgroups(workgroups, &mut decoded).map_err(|_| wrong())?;
                    n_compared = 0;
                }
                let len = piece.len().min(decoded.len() - n_compared);
                let (compared, rest) = piece.split_at(len);
                if len == 0 || compared != &decoded[n_compared..n_compared + len] {
                    return Err(wrong());
                }
                n_compared += len;
                piece = rest;
            }
            Ok(())
        })
    }

    /// Writes the shapes of the coded weights, which their six tensors do not have.
    pub(super) fn write_shapes(&self, output: &OutputDirectory) -> Result<(), Error> {
        let coded = self.planned().filter(|(_, plan)| plan.is_ok());
        let tensors =
            coded.flat_map(|(source, _)| &source.weights).map(|&weight| &self.repository.tensors()[weight]);
        let shapes: BTreeMap<&str, &[u64]> =
            tensors.map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice())).collect();
        let text = serde_json::to_string(&shapes)
            .map_err(|error| Error::invalid(format!("cannot write `{SHAPES_FILE}`: {error}")))?;
        let name =
            if self.own.start == 0 { SHAPES_FILE.to_owned() } else { part_shapes_file(self.own.start) };
        output.write(&name, text.as_bytes())
    }
}

/// The shapes of a part that does not start with the first module, under a name of its own so that parts can share a
/// directory.
fn part_shapes_file(first: usize) -> String {
    SHAPES_FILE.replace(".json", &format!("_{first}.json"))
}

/// Bytes that a module takes while it is coded.
fn coded_len(plan: &Plan) -> u64 {
    (plan.n_elements() + plan.encoded_len() + plan.gaps_len() + plan.output_positions_len()) as u64
}
