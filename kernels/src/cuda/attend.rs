//! One attention call from host memory, waited for: what case files, qualification and tests need. Everything is uploaded, run once and
//! brought back, so it says nothing about speed.

use super::attention::{Attention, Call, Extras, Operands, run_bytes, types};
use super::backend::CudaOptions;
use super::cubins::Cubins;
use super::device::{Device, guarded};
use super::memory::{DeviceBuffer, Pinned};
use super::params::{Counters, Seq, Table};
use super::qualify::shortest;
use super::step::{Launches, PhaseSeqs, skipping, work_list};
use super::unusable::Unusable;
use super::weights::Staging;
use crate::attention::{AttnCall, AttnGeometry, AttnSeq, DEFAULT_VOTES, SkipCounters};
use crate::backend::KernelError;
use crate::pages::{KvFormat, PAGE};
use skip_tables::Phase;

/// Attention's kernels on a device.
pub struct Attend {
    pub(super) attention: Attention,
    pub(super) cubins: Cubins,
    pub(super) staging: Staging,
    /// Skipping decode is two launches.
    pub(super) gather: bool,
    pub(super) device: Device,
}

/// Shapes of the votes that a call records, in the oracle's order.
fn kept_len(phase: Phase, g: &AttnGeometry, s: &AttnSeq<'_>) -> usize {
    match phase {
        Phase::Decode => g.kv_heads * s.kv_len.div_ceil(DEFAULT_VOTES.run),
        Phase::Prefill if s.q_len == 0 => 0,
        Phase::Prefill => {
            let tiles = (s.q_start + s.q_len - 1) / PAGE - s.q_start / PAGE + 1;
            g.heads * tiles * s.kv_len.div_ceil(PAGE)
        }
    }
}

impl Attend {
    /// Opens a device for attention alone.
    ///
    /// # Errors
    /// Why this machine cannot run on CUDA.
    pub fn open(options: &CudaOptions) -> Result<Self, Unusable> {
        guarded(|| {
            let device = Device::open(options.device, &options.system)?;
            let cubins = Cubins::load(&device, &options.cubins, &options.excluded)?;
            let staging = Staging::new(&device).map_err(|e| Unusable::Driver(e.to_string()))?;
            Ok(Self { attention: Attention::new(), cubins, staging, gather: options.gather_from == 0, device })
        })
    }

    /// The device, in words.
    pub fn device(&self) -> String {
        format!("{}, sm_{}", self.device.probe.name, self.cubins.architecture)
    }

    /// Whether there are kernels of this geometry.
    pub fn has_kernel(&mut self, phase: Phase, geometry: &AttnGeometry, format: KvFormat) -> bool {
        let name = match phase {
            Phase::Prefill => format!("attn_prefill_{}_d{}_skip_mma", format.name(), geometry.head_dim),
            Phase::Decode => format!("attn_decode_{}_d{}_skip", format.name(), geometry.head_dim),
        };
        self.cubins.find(&name).is_some() && (phase == Phase::Prefill || geometry.group() <= 8)
    }

    /// Computes the call as the CPU's `attention::prefill` and `decode` do; queries are rounded to the cache's format, and so are outputs.
    ///
    /// # Errors
    /// Shapes that do not fit, no kernel, or the device's refusal.
    pub fn run(&mut self, phase: Phase, call: &mut AttnCall<'_>) -> Result<(), KernelError> {
        let format = call.kv.layout.format;
        self.run_as(phase, call, format, 0).map(drop)
    }

    /// The same with outputs in another type than the cache's; then launched `again` times more for the shortest time, in microseconds.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub(super) fn run_as(&mut self, phase: Phase, call: &mut AttnCall<'_>, outputs: KvFormat, again: usize) -> Result<f32, KernelError> {
        self.call(phase, call, outputs, again, 0)
    }

    /// The same; `gaps` is where histograms are added up on the device, 0 for none.
    pub(super) fn call(
        &mut self,
        phase: Phase,
        call: &mut AttnCall<'_>,
        outputs: KvFormat,
        again: usize,
        gaps: u64,
    ) -> Result<f32, KernelError> {
        call.check()?;
        let (g, format) = (call.geometry, call.kv.layout.format);
        let name = types(format.name(), outputs.name())
            .ok_or_else(|| KernelError::Invalid(format!("attention: a {} cache under {} outputs", format.name(), outputs.name())))?;
        let rows = call.seqs.iter().map(|s| s.row + s.q_len).max().unwrap_or(0);
        let width = g.heads * g.head_dim;

        let mut q = vec![0u16; rows * width];
        for s in call.seqs {
            for row in s.row..s.row + s.q_len {
                let from = &call.q[row * call.q_stride..][..width];
                for (to, &x) in q[row * width..][..width].iter_mut().zip(from) {
                    *to = format.encode(x);
                }
            }
        }
        let mut pages = Vec::new();
        let mut tables = Vec::new();
        let mut seqs = Vec::new();
        for s in call.seqs {
            // A table that gives this threshold at this length.
            let table = s.ln_lambda.map(|ln_lambda| {
                let s = (f64::from(ln_lambda).exp() * s.kv_len as f64) as f32;
                tables.push(Table::constant(s));
                tables.len() as i32 - 1
            });
            seqs.push(Seq {
                row: s.row as i32,
                q_len: s.q_len as i32,
                q_start: s.q_start as i32,
                kv_len: s.kv_len as i32,
                final_len: s.kv_len as i32,
                table: table.unwrap_or(-1),
                pages: pages.len() as i32,
                pad: 0,
            });
            pages.extend(s.block_table.iter().map(|&page| page as i32));
        }
        let launched = if phase == Phase::Prefill { work_list(&seqs) } else { Vec::new() };
        let mut offsets = Vec::new();
        let mut kept_bytes = 0;
        for s in call.seqs {
            offsets.push(kept_bytes as i64);
            kept_bytes += kept_len(phase, &g, s);
        }

        let up = |this: &mut Self, bytes: &[u8]| -> Result<DeviceBuffer, KernelError> {
            let buffer = DeviceBuffer::zeroed(&this.device, bytes.len(), "a call")?;
            this.staging.bytes(&this.device, &buffer, bytes)?;
            Ok(buffer)
        };
        let device_q = up(self, bytemuck::cast_slice(&q))?;
        let device_k = up(self, bytemuck::cast_slice(call.kv.k))?;
        let device_v = up(self, bytemuck::cast_slice(call.kv.v))?;
        let device_seqs = up(self, bytemuck::cast_slice(&seqs))?;
        let device_pages = up(self, bytemuck::cast_slice(&pages))?;
        let device_tables = up(self, bytemuck::cast_slice(&tables))?;
        let device_work = up(self, bytemuck::cast_slice(&launched))?;
        let device_offsets = up(self, bytemuck::cast_slice(&offsets))?;
        // What a kernel leaves out must show: outputs begin as NaN, votes as wholly masked. Dense decode takes no votes: all runs are computed.
        let out = up(self, bytemuck::cast_slice(&vec![u16::MAX; rows * width]))?;
        let lse = up(self, bytemuck::cast_slice(&vec![f32::NAN; rows * g.heads]))?;
        let kept = up(self, &vec![if phase == Phase::Decode { 1u8 } else { 2 }; kept_bytes])?;
        let counters = DeviceBuffer::zeroed(&self.device, seqs.len() * size_of::<Counters>(), "a call")?;

        let places = (0..seqs.len()).collect();
        let skips = skipping(call.seqs.iter().map(|s| s.ln_lambda.is_some()));
        let of_phase = PhaseSeqs { padded: seqs.len(), seqs, places, skipping: skips, skippable: 0 };
        let launches = Launches {
            seqs: device_seqs.ptr(),
            counters: counters.ptr(),
            pages: device_pages.ptr(),
            work: device_work.ptr(),
            entries: launched.len(),
        };
        let at = Operands {
            q: device_q.ptr(),
            q_stride: width,
            k: device_k.ptr(),
            v: device_v.ptr(),
            out: out.ptr(),
            tables: device_tables.ptr(),
            extras: Extras { lse: lse.ptr(), kept: kept.ptr(), kept_offset: device_offsets.ptr(), gaps },
        };
        let longest = call.seqs.iter().map(|s| s.kv_len).max().unwrap_or(0);
        let whole = Call { seqs: &of_phase, launches, types: name, geometry: &g, at, longest, gather: self.gather };
        self.attention.phase(&self.device, &mut self.cubins, phase, &whole)?;

        let out_bytes = self.down(&out, rows * width * 2)?;
        let lse_bytes = self.down(&lse, rows * g.heads * 4)?;
        let kept_votes = self.down(&kept, kept_bytes)?;
        let counted = self.down(&counters, call.seqs.len() * size_of::<Counters>())?;
        let time = shortest(&self.device, again, || self.attention.phase(&self.device, &mut self.cubins, phase, &whole))?;
        for (i, s) in call.seqs.iter().enumerate() {
            for row in s.row..s.row + s.q_len {
                let (from, _) = out_bytes[row * width * 2..][..width * 2].as_chunks::<2>();
                for (to, &b) in call.out[row * width..][..width].iter_mut().zip(from) {
                    *to = outputs.decode(u16::from_le_bytes(b));
                }
                if let Some(to) = &mut call.lse {
                    let (from, _) = lse_bytes[row * g.heads * 4..][..g.heads * 4].as_chunks::<4>();
                    for (to, &b) in to[row * g.heads..][..g.heads].iter_mut().zip(from) {
                        *to = f32::from_le_bytes(b);
                    }
                }
            }
            if let Some(to) = &mut call.kept {
                let from = offsets[i] as usize;
                to[i] = kept_votes[from..from + kept_len(phase, &g, s)].to_vec();
            }
            let votes: Counters = bytemuck::pod_read_unaligned(&counted[i * size_of::<Counters>()..][..size_of::<Counters>()]);
            let bytes_not_read = if phase == Phase::Decode { votes.skipped * run_bytes(g.head_dim) } else { 0 };
            call.counters[i] += SkipCounters { votes: votes.votes, skipped: votes.skipped, bytes_not_read };
        }
        Ok(time)
    }

    pub(super) fn down(&self, buffer: &DeviceBuffer, bytes: usize) -> Result<Vec<u8>, KernelError> {
        let mut host = Pinned::new(&self.device, bytes)?;
        // SAFETY: pinned, and waited for at once.
        unsafe { buffer.download(&self.device, 0, &mut host.bytes_mut()[..bytes])? };
        self.device.synchronize()?;
        Ok(host.bytes()[..bytes].to_vec())
    }
}
