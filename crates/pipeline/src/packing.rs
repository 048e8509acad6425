//! What `plimsoll pack` writes of a pipeline: each component's tensors in streaming order and slot layout.
//!
//! The order is that of a run's graph: weights as its ops first read them, the parts of one weight (Q, K and V) end to
//! end, each weight at a multiple of 256 bytes with filler before it. That is how a plan lays out its units, whole
//! blocks and parts of them alike, so a unit's bytes are one run of the file. Behind them come host tables, then what
//! files carry along and no run reads.
//!
//! Where a matrix is stored in 8 bits its values change, once, here; nothing else changes any.
//!
//! Memory: the scales, and a row of a matrix for each thread.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use plimsoll_device::{HostDType, cpu};
use plimsoll_graph::{DType, Graph, WeightId};
use plimsoll_models::{FluxRun, flux};
use plimsoll_weights::{
    Catalog, Entry, NewTensor, PACK_ALIGNMENT, SCALE_SUFFIX, WeightDType, f8_encode, f8_scale,
    padding_name,
};

use crate::assembled::{Assembled, COMPONENTS, catalog};
use crate::failure::PipelineError;

/// What a component's weights are stored as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// As they are.
    #[default]
    Kept,
    /// f32 and f16 rounded to bf16.
    BF16,
    /// The matrices that [`flux::is_block_matrix`] names in 8 bits with a scale a row; the rest as it is.
    F8,
}

/// One component's file.
pub struct PackedFile<'a> {
    /// The component.
    pub component: String,
    /// The file's name in the component's folder.
    pub name: &'static str,
    /// Its tensors in order.
    pub tensors: Vec<NewTensor>,
    fills: Vec<Fill<'a>>,
    /// Scales of 8-bit matrices by the position of their matrix in `tensors`, once they are known.
    scales: Vec<Option<Vec<f32>>>,
}

impl std::fmt::Debug for PackedFile<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackedFile").field("component", &self.component).finish_non_exhaustive()
    }
}

/// Where a tensor's bytes come from.
enum Fill<'a> {
    Zeros,
    /// As they are, or rounded to bf16.
    Stored(Stored<'a>),
    /// To 8 bits by its rows' scales.
    Narrowed(Stored<'a>),
    /// The scales of the matrix at a position.
    Scales(usize),
}

/// A tensor of the checkpoint.
pub(crate) struct Stored<'a> {
    pub(crate) dtype: HostDType,
    /// Elements of a row.
    pub(crate) cols: u64,
    pieces: Vec<&'a [u8]>,
}

impl<'a> Stored<'a> {
    /// A tensor of the component at a position; nothing for a type that is not read.
    pub(crate) fn of(
        assembled: &'a Assembled,
        at: usize,
        entry: &Entry,
    ) -> Result<Option<Self>, PipelineError> {
        let Some(dtype) = host_dtype(entry.dtype) else { return Ok(None) };
        let cols = entry.shape.iter().skip(1).product();
        Ok(Some(Self { dtype, cols, pieces: pieces(assembled, at, entry)? }))
    }

    /// Copies bytes from `offset` on; pieces end between elements.
    pub(crate) fn read(&self, mut offset: usize, mut target: &mut [u8]) {
        for piece in &self.pieces {
            if offset >= piece.len() {
                offset -= piece.len();
                continue;
            }
            let here = (piece.len() - offset).min(target.len());
            let (now, rest) = target.split_at_mut(here);
            now.copy_from_slice(&piece[offset..offset + here]);
            (target, offset) = (rest, 0);
            if target.is_empty() {
                return;
            }
        }
    }

    /// Elements from `first` on, as `f32`.
    pub(crate) fn values(&self, first: u64, bytes: &mut Vec<u8>, values: &mut [f32]) {
        let width = size(self.dtype.bytes());
        bytes.resize(values.len() * width, 0);
        self.read(size(first) * width, bytes);
        cpu::cast(bytes, self.dtype, bytemuck::cast_slice_mut(values), DType::F32);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }

    pub(crate) fn rows(&self) -> u64 {
        self.bytes() / self.dtype.bytes() / self.cols.max(1)
    }
}

fn pieces<'a>(
    assembled: &'a Assembled,
    at: usize,
    entry: &Entry,
) -> Result<Vec<&'a [u8]>, PipelineError> {
    let pieces = entry.pieces.iter().map(|piece| assembled.host.piece(at, piece));
    Ok(pieces.collect::<Result<_, _>>()?)
}

/// What is mapped fits `usize`.
pub(crate) fn size(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

impl Assembled {
    /// What is to be written of each component, where `storage` says how its weights are stored.
    ///
    /// # Errors
    /// A type that is not read.
    pub fn packing(
        &self,
        storage: &dyn Fn(&str) -> Storage,
    ) -> Result<Vec<PackedFile<'_>>, PipelineError> {
        let graph = self.packing_graph(storage)?;
        COMPONENTS.iter().enumerate().map(|(at, name)| self.packed(&graph, at, name)).collect()
    }

    /// The graph of the pipeline's usual run over the types that will be stored.
    fn packing_graph(&self, storage: &dyn Fn(&str) -> Storage) -> Result<Graph, PipelineError> {
        let side = self.model.pixels_per_token();
        let run = FluxRun {
            width: side,
            height: side,
            steps: self.defaults.steps,
            samples: 1,
            text_tokens: 1,
            dtype: DType::F32,
            hoist: true,
            vae_tile: None,
        };
        let of = |component: &str, entry: &str| {
            let stored = self.stored_dtype(component, entry);
            match (stored, storage(component)) {
                (Some(WeightDType::F8E4M3), _) => DType::F8E4M3,
                (_, Storage::F8) if flux::is_block_matrix(component, entry) => DType::F8E4M3,
                (Some(WeightDType::F32 | WeightDType::F16), Storage::BF16)
                | (Some(WeightDType::BF16), _) => DType::BF16,
                // f16 too: the type decides nothing but its name here.
                _ => DType::F32,
            }
        };
        Ok(self.model.graph(&run, &of)?)
    }

    fn packed<'a>(
        &'a self,
        graph: &Graph,
        at: usize,
        name: &str,
    ) -> Result<PackedFile<'a>, PipelineError> {
        let catalog = catalog(&self.checkpoint, name)?;
        let mut file = FileInTheMaking {
            assembled: self,
            at,
            catalog,
            file: PackedFile {
                component: name.to_owned(),
                name: match name {
                    flux::TRANSFORMER | flux::VAE => "diffusion_pytorch_model.safetensors",
                    _ => "model.safetensors",
                },
                tensors: Vec::new(),
                fills: Vec::new(),
                scales: Vec::new(),
            },
            end: 0,
            fillers: 0,
        };
        let is_mine =
            |id: &WeightId| graph.components[graph.weight(*id).component.index()].name == name;
        let mut seen = vec![false; graph.weights.len()];
        for op in &graph.ops {
            let mut reads = Vec::new();
            op.for_each_weight(|id| reads.push(*id));
            for id in reads.iter().filter(|id| is_mine(id)) {
                if !std::mem::replace(&mut seen[id.index()], true) {
                    let weight = graph.weight(*id);
                    file.align();
                    for part in &weight.parts {
                        file.add(&part.entry, &part.shape, weight.dtype)?;
                    }
                }
            }
        }
        let tables = graph
            .tables
            .iter()
            .filter(|table| graph.components[table.component.index()].name == name);
        for table in tables {
            file.align();
            file.add(&table.part.entry, &table.part.shape, DType::F32)?;
        }
        let written: std::collections::BTreeSet<String> =
            file.file.tensors.iter().map(|tensor| tensor.name.clone()).collect();
        for (entry, stored) in catalog.iter().filter(|(entry, _)| !written.contains(*entry)) {
            file.add_stored(entry, stored)?;
        }
        Ok(file.file)
    }
}

/// A component's file while tensors are added to it.
struct FileInTheMaking<'a> {
    assembled: &'a Assembled,
    at: usize,
    catalog: &'a Catalog,
    file: PackedFile<'a>,
    end: u64,
    fillers: usize,
}

impl<'a> FileInTheMaking<'a> {
    /// Filler up to the next multiple of 256 bytes.
    fn align(&mut self) {
        let bytes = self.end.next_multiple_of(PACK_ALIGNMENT) - self.end;
        if bytes > 0 {
            let name = padding_name(self.fillers);
            self.fillers += 1;
            self.push(name, WeightDType::U8, &[bytes], Fill::Zeros);
        }
    }

    fn push(&mut self, name: String, dtype: WeightDType, shape: &[u64], fill: Fill<'a>) {
        let tensor = NewTensor { name, dtype, shape: shape.to_vec() };
        self.end += tensor.bytes().unwrap_or(0);
        self.file.tensors.push(tensor);
        self.file.fills.push(fill);
        self.file.scales.push(None);
    }

    /// A tensor that the graph reads, kept in `dtype` there.
    fn add(&mut self, entry: &str, shape: &[u64], dtype: DType) -> Result<(), PipelineError> {
        let Some(stored) = self.catalog.get(entry) else {
            // Scales of a matrix that is narrowed here; the graph names them after it, and behind it.
            let matrix = entry.strip_suffix(SCALE_SUFFIX).unwrap_or(entry);
            let at = self.file.tensors.iter().position(|tensor| tensor.name == matrix);
            let at = at.ok_or_else(|| self.refuse(entry, "absent"))?;
            self.push(entry.to_owned(), WeightDType::F32, shape, Fill::Scales(at));
            return Ok(());
        };
        let is_single = matches!(stored.dtype, WeightDType::F32 | WeightDType::F16);
        match dtype {
            DType::F8E4M3 if stored.dtype != WeightDType::F8E4M3 => {
                let fill = Fill::Narrowed(self.stored(entry, stored)?);
                self.push(entry.to_owned(), WeightDType::F8E4M3, shape, fill);
                Ok(())
            }
            DType::BF16 if is_single => {
                let fill = Fill::Stored(self.stored(entry, stored)?);
                self.push(entry.to_owned(), WeightDType::BF16, shape, fill);
                Ok(())
            }
            _ => self.add_stored(entry, stored),
        }
    }

    /// A tensor as it is.
    fn add_stored(&mut self, entry: &str, stored: &Entry) -> Result<(), PipelineError> {
        let fill = match host_dtype(stored.dtype) {
            Some(_) => Fill::Stored(self.stored(entry, stored)?),
            // What no run reads may be of any type: bytes are bytes.
            None => Fill::Stored(Stored {
                dtype: HostDType::F8E4M3,
                cols: 1,
                pieces: pieces(self.assembled, self.at, stored)?,
            }),
        };
        self.push(entry.to_owned(), stored.dtype, &stored.shape, fill);
        Ok(())
    }

    fn stored(&self, name: &str, entry: &Entry) -> Result<Stored<'a>, PipelineError> {
        Stored::of(self.assembled, self.at, entry)?
            .ok_or_else(|| self.refuse(name, entry.dtype.name()))
    }

    fn refuse(&self, entry: &str, dtype: &str) -> PipelineError {
        PipelineError::WeightType {
            component: self.file.component.clone(),
            entry: entry.to_owned(),
            dtype: dtype.to_owned(),
        }
    }
}

/// The type of bytes that copies know.
pub(crate) fn host_dtype(dtype: WeightDType) -> Option<HostDType> {
    match dtype {
        WeightDType::F32 => Some(HostDType::F32),
        WeightDType::F16 => Some(HostDType::F16),
        WeightDType::BF16 => Some(HostDType::BF16),
        WeightDType::F8E4M3 => Some(HostDType::F8E4M3),
        _ => None,
    }
}

impl PackedFile<'_> {
    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().filter_map(NewTensor::bytes).sum()
    }

    /// Bytes that [`PackedFile::find_scales`] reads.
    pub fn scale_bytes(&self) -> u64 {
        let narrowed = self.fills.iter().filter_map(|fill| match fill {
            Fill::Narrowed(stored) => Some(stored.rows() * stored.cols * stored.dtype.bytes()),
            _ => None,
        });
        narrowed.sum()
    }

    /// Finds the scales of all rows that will be stored in 8 bits; `read` is told of the bytes that were looked at,
    /// and says whether to go on.
    ///
    /// # Errors
    /// [`PipelineError::NotFinite`] for a weight that is no number. A stop is no error: the caller knows of it.
    pub fn find_scales(
        &mut self,
        threads: usize,
        read: &(dyn Fn(u64) -> bool + Sync),
    ) -> Result<(), PipelineError> {
        let narrowed: Vec<usize> = (0..self.fills.len())
            .filter(|at| matches!(self.fills[*at], Fill::Narrowed(_)))
            .collect();
        let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let fills = &self.fills;
        let work = || {
            while let Some(at) = narrowed.get(next.fetch_add(1, Ordering::Relaxed)) {
                let Fill::Narrowed(stored) = &fills[*at] else { continue };
                let (scales, goes_on) = row_scales(stored, read);
                if let Ok(mut found) = found.lock() {
                    found.push((*at, scales));
                }
                if !goes_on {
                    return;
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads.max(1) {
                scope.spawn(work);
            }
            work();
        });
        let mut found = found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        found.sort_by_key(|(at, _)| *at);
        for (at, scales) in found {
            let scales = scales.ok_or_else(|| PipelineError::NotFinite {
                component: self.component.clone(),
                entry: self.tensors[at].name.clone(),
            })?;
            self.scales[at] = Some(scales);
        }
        Ok(())
    }

    /// The bytes of a tensor from `offset` on; what [`plimsoll_weights::write_safetensors`] asks for.
    ///
    /// [`PackedFile::find_scales`] comes first.
    pub fn fill(&self, tensor: usize, offset: u64, bytes: &mut [u8]) {
        match &self.fills[tensor] {
            Fill::Zeros => bytes.fill(0),
            Fill::Scales(matrix) => {
                let scales = self.scales[*matrix].as_deref().unwrap_or_default();
                let first = size(offset / 4);
                for (target, scale) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(&scales[first..])
                {
                    *target = scale.to_le_bytes();
                }
            }
            Fill::Narrowed(stored) => {
                let scales = self.scales[tensor].as_deref().unwrap_or_default();
                narrow(stored, scales, offset, bytes);
            }
            Fill::Stored(stored)
                if self.tensors[tensor].dtype == WeightDType::BF16
                    && stored.dtype != HostDType::BF16 =>
            {
                let (width, first) = (size(stored.dtype.bytes()), size(offset / 2));
                let mut source = vec![0; bytes.len() / 2 * width];
                stored.read(first * width, &mut source);
                cpu::cast(&source, stored.dtype, bytes, DType::BF16);
            }
            Fill::Stored(stored) => stored.read(size(offset), bytes),
        }
    }
}

/// The scale of each row, or `None` where an element is no number; and whether to go on.
fn row_scales(
    stored: &Stored<'_>,
    read: &(dyn Fn(u64) -> bool + Sync),
) -> (Option<Vec<f32>>, bool) {
    let (mut bytes, mut values) = (Vec::new(), vec![0.0; size(stored.cols)]);
    let mut scales = Vec::with_capacity(size(stored.rows()));
    for row in 0..stored.rows() {
        stored.values(row * stored.cols, &mut bytes, &mut values);
        match f8_scale(&values) {
            Some(scale) => scales.push(scale),
            None => return (None, false),
        }
        if !read(bytes.len() as u64) {
            return (Some(scales), false);
        }
    }
    (Some(scales), true)
}

/// Elements from `first` on, in 8 bits.
fn narrow(stored: &Stored<'_>, scales: &[f32], first: u64, target: &mut [u8]) {
    let (mut bytes, mut values) = (Vec::new(), vec![0.0; size(stored.cols)]);
    let mut at = first;
    let mut rest = target;
    while !rest.is_empty() {
        let (row, col) = (at / stored.cols, at % stored.cols);
        let count = size(stored.cols - col).min(rest.len());
        let (here, after) = std::mem::take(&mut rest).split_at_mut(count);
        let values = &mut values[..count];
        stored.values(at, &mut bytes, values);
        let scale = scales.get(size(row)).copied().unwrap_or(1.0);
        for (code, value) in here.iter_mut().zip(values) {
            *code = f8_encode(*value / scale);
        }
        at += count as u64;
        rest = after;
    }
}
