//! The id of a plan: a digest of everything in it but the seconds.
//!
//! The encoding is fixed here and not left to a serializer: little-endian integers, texts and lists preceded by
//! their length. Two plans with the same id do the same copies to the same places in the same order.

use sha2::{Digest, Sha256};

use crate::types::{Offload, Plan, Region};

/// First 16 hexadecimal digits of the SHA-256.
pub(crate) fn of(plan: &Plan) -> String {
    let mut writer = Writer(Sha256::new());
    writer.text("plimsoll plan");
    writer.number(u64::from(plan.version));
    writer.text(&plan.arithmetic);
    writer.number(plan.line_bytes);
    writer.number(plan.arena_bytes);
    writer.number(plan.reserved_bytes);
    if let Some(edge) = plan.decode_tile {
        writer.text("decode tile");
        writer.number(edge);
    }
    writer.offload(plan.offload);
    writer.number(u64::from(plan.prefetch));
    writer.list(&plan.tensors, |w, region| w.region(*region));
    writer.list(&plan.workspaces, |w, region| w.region(*region));
    writer.list(&plan.units, |w, unit| {
        w.text(&unit.name);
        w.number(u64::from(unit.block.0));
        w.number(unit.bytes);
        w.list(&unit.weights, |w, weight| {
            w.number(u64::from(weight.weight.0));
            w.number(weight.offset);
        });
    });
    writer.list(&plan.loads, |w, load| {
        w.number(u64::from(load.unit));
        w.region(load.region);
        w.number(u64::from(load.is_resident));
    });
    writer.list(&plan.visits, |w, visit| {
        w.number(u64::from(visit.ops_start));
        w.number(u64::from(visit.ops_end));
        w.list(&visit.loads, |w, load| w.number(u64::from(*load)));
    });
    writer.list(&plan.phases, |w, phase| {
        w.text(&phase.name);
        w.text(phase.kind_name());
        w.number(u64::from(phase.visits_start));
        w.number(u64::from(phase.visits_end));
        w.number(u64::from(phase.repeat));
    });
    writer.list(&plan.copies, |w, copy| {
        w.number(u64::from(copy.load));
        w.number(copy.step.map_or(0, |step| u64::from(step) + 1));
        w.number(u64::from(copy.after));
    });
    writer.list(&plan.computes, |w, compute| {
        w.number(u64::from(compute.visit));
        w.number(u64::from(compute.step));
        w.number(u64::from(compute.needs));
    });
    writer.number(plan.predicted.vram_peak_bytes);
    writer.number(plan.predicted.vram_process_bytes);
    writer.number(plan.predicted.copied_bytes_per_step);
    writer.number(plan.predicted.copied_bytes);
    let digest = writer.0.finalize();
    digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Writer(Sha256);

impl Writer {
    fn number(&mut self, number: u64) {
        self.0.update(number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.update(text.as_bytes());
    }

    fn region(&mut self, region: Region) {
        self.number(region.offset);
        self.number(region.bytes);
    }

    fn offload(&mut self, offload: Offload) {
        self.text(offload.name());
        if let Offload::Group { blocks } = offload {
            self.number(u64::from(blocks));
        }
    }

    fn list<T>(&mut self, list: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.number(list.len() as u64);
        for entry in list {
            write(self, entry);
        }
    }
}
