//! Measuring on the device: dense outputs, and histograms of the votes' gaps beside them.

use super::attend::Attend;
use super::device::Device;
use super::memory::{DeviceBuffer, Pinned};
use crate::attention::AttnCall;
use crate::backend::KernelError;
use crate::gaps::{GAP_BINS, GapHistogram, Gaps, votes};
use skip_tables::Phase;

const HISTOGRAM_BYTES: usize = 16 * GAP_BINS;
/// Bytes of what one sequence and layer tell.
const LAYER_BYTES: usize = 2 * HISTOGRAM_BYTES;

/// The histograms of a step that measures, a layer's behind another's.
#[derive(Default)]
pub(super) struct Measuring {
    layers: Vec<DeviceBuffer>,
    /// Layers of the step so far.
    used: usize,
    host: Option<Pinned>,
}

impl Measuring {
    /// A step begins.
    pub fn begin(&mut self) {
        self.used = 0;
    }

    /// Where the next layer's are added up, from nothing.
    pub fn next(&mut self, device: &Device) -> Result<u64, KernelError> {
        match self.layers.get(self.used) {
            Some(layer) => layer.clear(device)?,
            None => self.layers.push(DeviceBuffer::zeroed(device, LAYER_BYTES, "histograms")?),
        }
        self.used += 1;
        Ok(self.layers[self.used - 1].ptr())
    }

    /// Waits for the stream and gives the step's, one a layer.
    pub fn take(&mut self, device: &Device) -> Result<Vec<Gaps>, KernelError> {
        let bytes = self.used * LAYER_BYTES;
        if self.host.as_ref().is_none_or(|host| host.bytes_len() < bytes) {
            self.host = Some(Pinned::new(device, bytes)?);
        }
        let Some(host) = &mut self.host else { return Ok(Vec::new()) };
        for (layer, to) in self.layers.iter().zip(host.bytes_mut()[..bytes].chunks_exact_mut(LAYER_BYTES)) {
            // SAFETY: pinned, and waited for below.
            unsafe { layer.download(device, 0, to)? };
        }
        device.synchronize()?;
        let mut all = host.bytes()[..bytes].chunks_exact(HISTOGRAM_BYTES).map(histogram);
        Ok(std::iter::from_fn(|| Some([all.next()?, all.next()?])).collect())
    }
}

impl Attend {
    /// Computes the call densely, whatever its thresholds, and tells every sequence's votes by gap: 128 × 128 tiles, or runs of 32 keys and
    /// pages of 128. Windowed layers give empty histograms.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn measure(&mut self, phase: Phase, call: &mut AttnCall<'_>) -> Result<Vec<Gaps>, KernelError> {
        let gaps = self.no_gaps(call.seqs.len())?;
        let at = if votes(&call.geometry) { gaps.ptr() } else { 0 };
        let format = call.kv.layout.format;
        self.call(phase, call, format, 0, at)?;
        self.histograms(&gaps, call.seqs.len())
    }

    /// Empty histograms on the device, two a sequence.
    pub(super) fn no_gaps(&self, seqs: usize) -> Result<DeviceBuffer, KernelError> {
        DeviceBuffer::zeroed(&self.device, seqs * 2 * HISTOGRAM_BYTES, "histograms")
    }

    /// Brings them back.
    pub(super) fn histograms(&self, gaps: &DeviceBuffer, seqs: usize) -> Result<Vec<Gaps>, KernelError> {
        let bytes = self.down(gaps, seqs * 2 * HISTOGRAM_BYTES)?;
        let mut all = bytes.chunks_exact(HISTOGRAM_BYTES).map(histogram);
        let mut next = || all.next().unwrap_or_default();
        Ok((0..seqs).map(|_| [next(), next()]).collect())
    }
}

/// Votes first, then masses.
fn histogram(bytes: &[u8]) -> GapHistogram {
    let (words, _) = bytes.as_chunks::<8>();
    let (votes, mass) = words.split_at(GAP_BINS);
    GapHistogram {
        votes: votes.iter().map(|&b| u64::from_le_bytes(b)).collect(),
        mass: mass.iter().map(|&b| f64::from_le_bytes(b)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::DEFAULT_VOTES;
    use crate::cpu;
    use crate::cpu::measure::tests::Exact;
    use crate::cuda::{Activations, CudaOptions};

    #[test]
    fn bytes_become_a_histogram() {
        let mut bytes = vec![0; HISTOGRAM_BYTES];
        bytes[8] = 3;
        bytes[8 * (GAP_BINS + 1)..8 * (GAP_BINS + 2)].copy_from_slice(&0.5f64.to_le_bytes());
        let gaps = histogram(&bytes);
        assert_eq!((gaps.votes[1], gaps.mass[1], gaps.votes.len(), gaps.mass.len()), (3, 0.5, GAP_BINS, GAP_BINS));
    }

    #[test]
    #[ignore = "needs a GPU and target/cubins"]
    fn the_device_measures_what_plain_arithmetic_does() {
        let mut attend = Attend::open(&CudaOptions::new(Activations::Fp16)).unwrap();
        // Outputs are those of the portable dense kernels to the bit.
        attend.attention.portable = true;
        for phase in [Phase::Prefill, Phase::Decode] {
            for (head_dim, group) in [(64, 7), (128, 4), (256, 2)] {
                let exact = Exact::new(phase, head_dim, group);
                let (measured, gaps) = exact.call(None, |call| attend.measure(phase, call).unwrap());
                let (dense, ()) = exact.call(None, |call| attend.run(phase, call).unwrap());
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
                assert_eq!(bits(&measured.out), bits(&dense.out), "{phase:?} {head_dim}");
                assert_eq!(bits(&measured.lse), bits(&dense.lse), "{phase:?} {head_dim}");
                let expected = exact.call(None, |call| cpu::measure::measure(phase, call, &DEFAULT_VOTES)).1.unwrap();
                for (i, (found, wanted)) in gaps.iter().flatten().zip(expected.iter().flatten()).enumerate() {
                    assert_eq!(found.votes, wanted.votes, "{phase:?} {head_dim}, histogram {i}");
                    for (bin, (a, b)) in found.mass.iter().zip(&wanted.mass).enumerate() {
                        assert!((a - b).abs() <= 1e-5 * b.max(1.0), "{phase:?} {head_dim}, histogram {i}, bin {bin}: {a} for {b}");
                    }
                }
                println!("{phase:?} d {head_dim}: {} votes", gaps.iter().flatten().flat_map(|g| &g.votes).sum::<u64>());
            }
        }
    }
}
