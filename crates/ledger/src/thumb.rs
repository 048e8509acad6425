//! Rules of thumb: the four tables by which people size a card today, from their formulas.
//!
//! Nothing here is exact, and that is the point: each figure is what a rule gives for given inputs, to be held against
//! the exact one of a plan. The formulas are those of a handbook of diffusion inference (its chapter on FLUX in 16 GB);
//! every input is a field, so that no table is stored text.
//!
//! A "GB" of these tables is 2^30 bytes, but on the bus, where it is 10^9; both are as the handbook prints them.

/// 2^30: the unit of the tables of memory.
pub const GIB: f64 = 1_073_741_824.0;

/// Precisions of weights and their bytes a parameter; NF4 with its scales.
pub const PRECISIONS: [(&str, f64); 3] = [("bf16", 2.0), ("fp8", 1.0), ("nf4", 0.5625)];

/// What a rule knows of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThumbModel {
    /// Name with the picture's size.
    pub name: &'static str,
    /// Parameters of the denoiser, in 10^9.
    pub denoiser: f64,
    /// Parameters of the text encoders, in 10^9.
    pub text: f64,
    /// Parameters of the VAE, in 10^9.
    pub vae: f64,
    /// Width of the residual stream.
    pub width: f64,
    /// Tokens of a step.
    pub tokens: f64,
}

/// The handbook's four models, with its own parameter and token counts.
pub const MODELS: [ThumbModel; 4] = [
    ThumbModel {
        name: "SDXL 1024x1024",
        denoiser: 2.6,
        text: 0.82,
        vae: 0.08,
        width: 1280.0,
        tokens: 4096.0,
    },
    FLUX,
    ThumbModel {
        name: "Wan 2.1-14B 720p",
        denoiser: 14.0,
        text: 5.7,
        vae: 0.13,
        width: 5120.0,
        tokens: 76_112.0,
    },
    HUNYUAN,
];

const FLUX: ThumbModel = ThumbModel {
    name: "FLUX.1-dev 1024x1024",
    denoiser: 11.9,
    text: 4.9,
    vae: 0.08,
    width: 3072.0,
    tokens: 4608.0,
};

const HUNYUAN: ThumbModel = ThumbModel {
    name: "HunyuanVideo 720p",
    denoiser: 12.7,
    text: 8.6,
    vae: 0.25,
    width: 3072.0,
    tokens: 119_056.0,
};

/// What the rules are fed.
#[derive(Clone, Debug, PartialEq)]
pub struct ThumbInputs {
    /// Models of the first table; the others are of the second model.
    pub models: Vec<ThumbModel>,
    /// Context and fragmentation, in GiB.
    pub overhead_gib: f64,
    /// Buses and their bytes a second.
    pub buses: Vec<(String, f64)>,
    /// Steps of a picture.
    pub steps: f64,
    /// Seconds of a step's arithmetic.
    pub compute_per_step: f64,
    /// Blocks of the denoiser.
    pub blocks: f64,
    /// Bytes a second of the table of groups and of the card.
    pub group_bus: f64,
    /// Blocks in a group.
    pub groups: Vec<u32>,
    /// Memory of the card, in GiB.
    pub card_gib: f64,
    /// What a tiled decode may take, in GiB.
    pub decode_gib: f64,
    /// Blocks in a group of the last way to fit the card.
    pub card_group: u32,
    /// ControlNets beside the model, and the bytes of each.
    pub controlnets: (u32, f64),
}

impl Default for ThumbInputs {
    fn default() -> Self {
        Self {
            models: MODELS.to_vec(),
            overhead_gib: 1.5,
            buses: vec![("PCIe 4.0 x16".to_owned(), 25e9), ("PCIe 5.0 x16".to_owned(), 50e9)],
            steps: 28.0,
            compute_per_step: 0.17,
            blocks: 57.0,
            group_bus: 25e9,
            groups: vec![1, 4, 8, 19, 57],
            card_gib: 16.0,
            decode_gib: 1.0,
            card_group: 8,
            controlnets: (3, 3.6e9),
        }
    }
}

/// A row of the first table, in bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryRow {
    /// Model.
    pub model: &'static str,
    /// Precision.
    pub precision: &'static str,
    /// Weights of the denoiser.
    pub denoiser: f64,
    /// Weights of the text encoders.
    pub text: f64,
    /// Activations of a step.
    pub activations: f64,
    /// All of it, with the VAE in 16 bits and the overhead.
    pub total: f64,
}

/// A row of the second table.
#[derive(Clone, Debug, PartialEq)]
pub struct OffloadRow {
    /// Bus.
    pub bus: String,
    /// Strategy.
    pub strategy: &'static str,
    /// Bytes over the bus for a picture.
    pub moved: f64,
    /// Seconds beside the arithmetic.
    pub extra: f64,
    /// Seconds of a picture.
    pub picture: f64,
}

/// A row of the third table.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupRow {
    /// Blocks in a group.
    pub blocks: u32,
    /// Bytes of two groups: one that computes, one on its way.
    pub resident: f64,
    /// Seconds to move a group.
    pub moving: f64,
    /// Seconds to compute a group.
    pub computing: f64,
    /// Whether moving hides behind computing.
    pub hides: bool,
}

/// A row of the fourth table.
#[derive(Clone, Debug, PartialEq)]
pub struct CardRow {
    /// The way.
    pub way: String,
    /// Bytes that it needs, with activations and a tiled decode.
    pub need: f64,
    /// Whether it fits the card less the overhead.
    pub fits: bool,
    /// Seconds of copies for a picture.
    pub extra: f64,
}

/// Bytes of a step's activations: the residual stream, Q, K, V and the widened layer, twice.
pub fn activation_bytes(width: f64, tokens: f64) -> f64 {
    tokens * (width + 3.0 * width + 4.0 * width) * 2.0 * 2.0
}

impl ThumbInputs {
    fn flux(&self) -> ThumbModel {
        self.models.get(1).copied().unwrap_or(FLUX)
    }

    /// Table 1: memory by model and precision.
    pub fn memory(&self) -> Vec<MemoryRow> {
        let mut rows = Vec::new();
        for model in &self.models {
            for (precision, bytes) in PRECISIONS {
                let (denoiser, text) = (model.denoiser * 1e9 * bytes, model.text * 1e9 * bytes);
                let activations = activation_bytes(model.width, model.tokens);
                let total =
                    denoiser + text + model.vae * 1e9 * 2.0 + activations + self.overhead_gib * GIB;
                let model = model.name;
                rows.push(MemoryRow { model, precision, denoiser, text, activations, total });
            }
        }
        rows
    }

    /// Table 2: what offload costs on each bus, for FLUX.1-dev in bf16.
    pub fn offload(&self) -> Vec<OffloadRow> {
        let flux = self.flux();
        let (denoiser, text) = (flux.denoiser * 1e9 * 2.0, flux.text * 1e9 * 2.0);
        let compute = self.steps * self.compute_per_step;
        let mut rows = Vec::new();
        for (bus, rate) in &self.buses {
            // In and out, as diffusers moves a component; weights that do not change need no way back.
            let model = text * 2.0 + denoiser * 2.0;
            let sequential = text + denoiser * self.steps;
            let hidden = (sequential / rate - compute).max(0.0);
            for (strategy, moved, extra) in [
                ("model", model, model / rate),
                ("sequential", sequential, sequential / rate),
                ("sequential + prefetch", sequential, hidden),
            ] {
                let picture = compute + extra;
                rows.push(OffloadRow { bus: bus.clone(), strategy, moved, extra, picture });
            }
        }
        rows
    }

    /// Bytes of a block of FLUX.1-dev in bf16, all blocks being taken as alike.
    pub fn block_bytes(&self) -> f64 {
        self.flux().denoiser * 1e9 * 2.0 / self.blocks
    }

    /// Table 3: groups of blocks, and whether their copies hide.
    pub fn groups(&self) -> Vec<GroupRow> {
        let bytes = self.block_bytes();
        let seconds = self.compute_per_step / self.blocks;
        let row = |blocks: u32| {
            let count = f64::from(blocks);
            let (moving, computing) = (count * bytes / self.group_bus, count * seconds);
            GroupRow {
                blocks,
                resident: count * bytes * 2.0,
                moving,
                computing,
                hides: moving <= computing,
            }
        };
        self.groups.iter().map(|blocks| row(*blocks)).collect()
    }

    /// Bytes of the card that the overhead leaves.
    pub fn budget(&self) -> f64 {
        self.card_gib * GIB - self.overhead_gib * GIB
    }

    /// Table 4: five ways to fit FLUX.1-dev on the card.
    pub fn card(&self) -> Vec<CardRow> {
        let flux = self.flux();
        let (denoiser, text, vae) = (flux.denoiser * 1e9, flux.text * 1e9, flux.vae * 1e9 * 2.0);
        let [bf16, fp8, nf4] = PRECISIONS.map(|(_, bytes)| bytes);
        let group = f64::from(self.card_group) * 2.0 * self.block_bytes();
        let text_moves = 2.0 * text / self.group_bus;
        let ways = [
            ("bf16, all resident".to_owned(), denoiser * bf16 + text * bf16 + vae, 0.0),
            ("fp8, T5 fp8 resident".to_owned(), denoiser * fp8 + text * fp8 + vae, 0.0),
            ("fp8, T5 freed after encoding".to_owned(), denoiser * fp8 + vae, text_moves),
            ("nf4, T5 nf4 resident".to_owned(), denoiser * nf4 + text * nf4 + vae, 0.0),
            (
                format!("bf16 in groups of {}, T5 freed", self.card_group),
                group + vae,
                self.steps * denoiser * bf16 / self.group_bus + text_moves,
            ),
        ];
        let beside = activation_bytes(flux.width, flux.tokens) + self.decode_gib * GIB;
        ways.into_iter()
            .map(|(way, weights, extra)| {
                let need = weights + beside;
                CardRow { way, need, fits: need <= self.budget(), extra }
            })
            .collect()
    }

    /// Exercise 1: weights of HunyuanVideo in bf16, activations of a step, and what freeing the text encoder saves.
    pub fn hunyuan(&self) -> [f64; 3] {
        let model = self.models.get(3).copied().unwrap_or(HUNYUAN);
        let text = model.text * 1e9 * 2.0;
        [model.denoiser * 1e9 * 2.0 + text, activation_bytes(model.width, model.tokens), text]
    }

    /// Exercise 3: bytes of all ControlNets resident, bytes of one, and seconds to bring one.
    pub fn controlnets(&self) -> [f64; 3] {
        let (count, bytes) = self.controlnets;
        [f64::from(count) * bytes, bytes, bytes / self.group_bus]
    }
}
