//! Memory that grows with a model's needs, what goes up between steps, and what the ledger asks of the device.

use super::super::ledger::{self, Chip};
use super::super::memory::DeviceBuffer;
use super::super::params::Table;
use super::super::step::TABLE_SLOTS;
use super::CudaBackend;
use crate::backend::{KernelError, SeqStep};

impl CudaBackend {
    pub(super) fn upload(&mut self, to: &DeviceBuffer, bytes: &[u8]) -> Result<(), KernelError> {
        self.staging.bytes(&self.device, to, bytes)
    }

    /// Rows of queries as attention takes them, between `qkv_store` and `attention`.
    pub(super) fn queries(&mut self, width: usize) -> Result<u64, KernelError> {
        let bytes = self.max_rows * width * 2;
        if self.queries.as_ref().is_none_or(|buffer| buffer.bytes() < bytes) {
            self.queries = Some(DeviceBuffer::zeroed(&self.device, bytes, "queries")?);
        }
        Ok(self.queries.as_ref().map_or(0, DeviceBuffer::ptr))
    }

    pub(super) fn logits_buffer(&mut self, rows: usize, vocab: usize) -> Result<u64, KernelError> {
        let bytes = ledger::logits_bytes(rows.max(self.sampler.rows()), vocab);
        if self.logits.as_ref().is_none_or(|buffer| buffer.bytes() < bytes) {
            self.logits = Some(DeviceBuffer::zeroed(&self.device, bytes, "logits")?);
        }
        Ok(self.logits.as_ref().map_or(0, DeviceBuffer::ptr))
    }

    pub(super) fn upload_table(&mut self, place: usize, table: &Table) -> Result<(), KernelError> {
        self.staging.bytes_at(&self.device, &self.device_tables, place * size_of::<Table>(), bytemuck::bytes_of(table))
    }

    /// For sequences whose table no slot holds: the row in force, where [`StepBlock`] tells the kernels to look.
    pub(super) fn upload_rows_in_force(&mut self, seqs: &[SeqStep<'_>]) -> Result<(), KernelError> {
        for (place, seq) in seqs.iter().enumerate() {
            let table = seq.table.and_then(|slot| self.tables.get(usize::from(slot.0))).and_then(Option::as_ref);
            if let Some(table) = table.filter(|table| !Table::holds(table)) {
                let row = Table::at(table, seq.final_len);
                self.upload_table(TABLE_SLOTS + place, &row)?;
            }
        }
        Ok(())
    }

    pub(super) fn chip(&self, free: u64) -> Chip {
        Chip {
            integrated: self.device.probe.integrated,
            free,
            sms: self.device.sms,
            roomy: self.device.is_roomy(),
            samples: self.sampler.rows(),
            fixed: (self.sampler.bytes() + self.device_tables.bytes() + self.step.bytes()) as u64,
        }
    }
}
