//! Finds the libraries that may be there: cuBLASLt, cuDNN, and NVRTC, which cuDNN asks for by name.
//!
//! Order: folders of the caller (`--cuda-lib-dir`), Python wheels, toolkits, the system's loader. Each library has
//! a table of its own with the few functions that are used; a library that is missing, too old, broken or of
//! another kind is absent, with the reason in its [`LibraryReport`], and the run goes on with own kernels.

pub(crate) mod find;
mod folders;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use cudarc::driver::sys::{CUdeviceptr, CUstream};
use plimsoll_cuda_kernels::{Arch, AttentionBackend, Backends, GemmBackend, NarrowBackend};

pub use find::{LibraryReport, Refusal};
pub(crate) use find::{Wanted, find, functions};
pub use folders::Places;

use crate::CudaError;
use crate::dnn::{Dnn, DnnFunctions};
use crate::lt::{Lt, LtFunctions, TunedProduct};

const CUBLAS_LT: Wanted =
    Wanted { name: "cuBLASLt", stem: "cublasLt", majors: &[13, 12], parts: &[], global: false };
const CUDNN: Wanted = Wanted {
    name: "cuDNN",
    stem: "cudnn",
    majors: &[9],
    // The rest of its parts are opened by this one, from its own folder.
    parts: &["libcudnn_graph.so.9"],
    global: true,
};
const NVRTC: Wanted =
    Wanted { name: "NVRTC", stem: "nvrtc", majors: &[13, 12], parts: &[], global: true };

/// Where to look for libraries and which to use.
#[derive(Clone, Debug, Default)]
pub struct LibraryOptions {
    /// Folders to look in first.
    pub folders: Vec<PathBuf>,
    /// Where else; [`Places::of_environment`] if absent.
    pub places: Option<Places>,
    /// Use own kernels for products even where cuBLASLt is there.
    pub without_cublas_lt: bool,
    /// Unpack weights stored in 8 bits even where cuBLASLt or own kernels multiply 8 bits by 8 bits.
    pub without_narrow_products: bool,
    /// Use own kernels for attention even where cuDNN is there.
    pub without_cudnn: bool,
    /// Choices among algorithms of the same bits; those of other versions of the library are left alone.
    pub tuned: Vec<TunedProduct>,
    /// Architecture of the card, for rules that were proven on it; absent means none is assumed.
    pub arch: Option<Arch>,
}

/// Libraries that were found and opened.
#[derive(Debug)]
pub struct Libraries {
    /// cuBLASLt.
    pub lt: Option<Lt>,
    /// cuDNN.
    pub dnn: Option<Arc<Dnn>>,
    /// Products of 8 bits without a library for them.
    own_narrow: NarrowBackend,
    /// What was found and what was not, with reasons.
    pub reports: Vec<LibraryReport>,
}

/// Libraries by their files: found, of the right kind and version, not yet used.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) lt: Option<LtFunctions>,
    pub(crate) dnn: Option<DnnFunctions>,
    pub(crate) reports: Vec<LibraryReport>,
}

impl Found {
    /// Searches; needs no driver and no card.
    pub(crate) fn search(options: &LibraryOptions) -> Self {
        let places = options.places.clone().unwrap_or_else(Places::of_environment);
        let folders = places.folders(&options.folders);
        let mut found = Self::default();
        if !options.without_cublas_lt {
            let (lt, report) = find(&CUBLAS_LT, &folders, places.system, LtFunctions::accept);
            found.lt = lt;
            found.reports.push(report);
        }
        if !options.without_cudnn {
            // First, so that cuDNN's run-time compiler finds it loaded.
            let (_, nvrtc) = find(&NVRTC, &folders, places.system, nvrtc_version);
            let (dnn, report) = find(&CUDNN, &folders, places.system, DnnFunctions::accept);
            found.dnn = dnn;
            found.reports.extend([report, nvrtc]);
        }
        found
    }
}

/// A search beside other work: opening libraries of hundreds of megabytes takes as long as making a context.
///
/// The thread never outlives this: a process that ends while libraries are being opened may crash.
#[derive(Debug)]
pub(crate) struct Searching {
    options: LibraryOptions,
    thread: Option<JoinHandle<Found>>,
}

impl Searching {
    /// Starts it; where there is no thread to be had, the search is made when it is asked for.
    pub(crate) fn start(mut options: LibraryOptions) -> Self {
        // The environment is read here: other work may change it.
        options.places.get_or_insert_with(Places::of_environment);
        let asked = options.clone();
        let thread = Builder::new().name("libraries".to_owned());
        Self { options, thread: thread.spawn(move || Found::search(&asked)).ok() }
    }

    /// Waits for it.
    pub(crate) fn found(mut self) -> Found {
        match self.thread.take() {
            // A search that panicked has found nothing: own kernels compute.
            Some(thread) => thread.join().unwrap_or_default(),
            None => Found::search(&self.options),
        }
    }
}

impl Drop for Searching {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // Nobody asks what it found.
            let _found = thread.join();
        }
    }
}

/// What was found where, without opening a card: what `plimsoll doctor` prints.
pub fn search(options: &LibraryOptions) -> Vec<LibraryReport> {
    Found::search(options).reports
}

impl Libraries {
    /// Opens what is there; what is not is absent. The context is current.
    pub fn open(options: &LibraryOptions) -> Self {
        Self::open_found(Found::search(options), options)
    }

    /// Opens what a search with the same options has found. The context is current.
    pub(crate) fn open_found(found: Found, options: &LibraryOptions) -> Self {
        let Found { lt, dnn, reports } = found;
        let own_narrow = if options.without_narrow_products {
            NarrowBackend::Unpacked
        } else {
            NarrowBackend::own(options.arch)
        };
        let mut opened = Self { lt: None, dnn: None, own_narrow, reports };
        match lt
            .map(|functions| {
                let narrow = !options.without_narrow_products;
                Lt::open(functions, options.arch, narrow, &options.tuned)
            })
            .transpose()
        {
            Ok(lt) => opened.lt = lt,
            Err(error) => opened.refuse(CUBLAS_LT.name, &error),
        }
        match dnn.map(Dnn::open).transpose() {
            Ok(dnn) => opened.dnn = dnn.map(Arc::new),
            Err(error) => opened.refuse(CUDNN.name, &error),
        }
        opened
    }

    /// Says in a library's report why it is not used after all.
    fn refuse(&mut self, name: &'static str, error: &CudaError) {
        let Some(report) = self.reports.iter_mut().find(|report| report.name == name) else {
            return;
        };
        report.version = None;
        let path = report.path.take().unwrap_or_default();
        report.refused.push(Refusal { path, cause: error.to_string() });
    }

    /// What the libraries that are there compute; the rest is for own kernels.
    pub fn backends(&self) -> Backends {
        Backends {
            gemm: if self.lt.is_some() { GemmBackend::CublasLt } else { GemmBackend::Own },
            narrow: if self.lt.as_ref().is_some_and(Lt::has_f8_rows) {
                NarrowBackend::CublasLtRows
            } else {
                self.own_narrow
            },
            attention: if self.dnn.is_some() {
                AttentionBackend::Cudnn
            } else {
                AttentionBackend::Own
            },
        }
    }

    /// Names and versions of the libraries in use, part of a plan's arithmetic.
    pub fn arithmetic(&self) -> String {
        let lt = self.lt.as_ref().map(|lt| {
            // With gates that are folded into the product: before, residuals were added to what it had rounded.
            let narrow = if lt.has_f8_rows() { " f8 gated" } else { "" };
            format!(" cublaslt {}{narrow}", lt.version())
        });
        let own = (self.backends().narrow == NarrowBackend::Own).then(|| " f8 own".to_owned());
        let dnn = self.dnn.as_ref().map(|dnn| format!(" cudnn {}", dnn.version()));
        lt.into_iter().chain(own).chain(dnn).collect()
    }

    /// Uses each library once, so that all device memory that they take is taken; `scratch` are device bytes.
    ///
    /// They are used side by side: each loads code for a tenth of a second. `enter` makes the context current in a
    /// thread.
    ///
    /// One that does not run on this card is absent from then on, with the reason in its report.
    ///
    /// # Errors
    /// A failure after which the card cannot be used.
    ///
    /// # Safety
    /// `streams` are live streams of the current context, and `scratch` so many bytes that outlive their work.
    pub unsafe fn warm_up(
        &mut self,
        scratch: CUdeviceptr,
        scratch_bytes: u64,
        streams: [CUstream; 2],
        enter: &(dyn Fn() -> Result<(), CudaError> + Sync),
    ) -> Result<(), CudaError> {
        let half = scratch_bytes / 2;
        let [first, second] = streams.map(|stream| stream as usize);
        let dnn = |dnn: &Dnn| {
            enter()?;
            // SAFETY: as this function's; the other half and the other stream are not touched.
            unsafe { dnn.warm_up(scratch + half, half, second as CUstream) }
        };
        let (lt, dnn) = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("cuDNN".to_owned());
            let beside =
                self.dnn.as_ref().map(|of| (of, thread.spawn_scoped(scope, move || dnn(of))));
            // SAFETY: as this function's.
            let warm = |lt: &Lt| unsafe { lt.warm_up(scratch, half, first as CUstream) };
            let lt = self.lt.as_ref().map(warm);
            let panicked = |panic| std::panic::resume_unwind(panic);
            let dnn = beside.map(|(of, thread)| match thread {
                Ok(thread) => thread.join().unwrap_or_else(panicked),
                // No thread to be had: one after the other.
                Err(_) => dnn(of),
            });
            (lt, dnn)
        });
        if let Some(Err(error)) = lt {
            self.give_up(CUBLAS_LT.name, error)?;
            self.lt = None;
        }
        if let Some(Err(error)) = dnn {
            self.give_up(CUDNN.name, error)?;
            self.dnn = None;
        }
        Ok(())
    }

    fn give_up(&mut self, name: &'static str, error: CudaError) -> Result<(), CudaError> {
        if error.is_sticky() {
            return Err(error);
        }
        self.refuse(name, &error);
        Ok(())
    }
}

functions! {
    /// NVRTC, as far as it is asked.
    NvrtcFunctions {
        nvrtcVersion: fn(*mut i32, *mut i32) -> i32;
    }
}

fn nvrtc_version(library: &libloading::os::unix::Library) -> Result<((), String), String> {
    let functions = NvrtcFunctions::resolve(library)?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both pointers are to locals.
    let status = unsafe { (functions.nvrtcVersion)(&mut major, &mut minor) };
    if status == 0 { Ok(((), format!("{major}.{minor}"))) } else { Err(format!("status {status}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nowhere() -> LibraryOptions {
        LibraryOptions {
            folders: vec![PathBuf::from("/nowhere/at/all")],
            places: Some(Places::default()),
            ..LibraryOptions::default()
        }
    }

    #[test]
    fn a_search_beside_other_work_finds_what_a_search_finds() {
        let reports = search(&nowhere());
        assert_eq!(reports.len(), 3, "{reports:?}");
        assert_eq!(Searching::start(nowhere()).found().reports, reports);
        let without_thread = Searching { options: nowhere(), thread: None };
        assert_eq!(without_thread.found().reports, reports);
    }

    #[test]
    fn a_search_that_panics_has_found_nothing() {
        let thread = std::thread::spawn(|| -> Found { panic!("a search that panics") });
        let found = Searching { options: nowhere(), thread: Some(thread) }.found();
        assert!(found.lt.is_none() && found.dnn.is_none() && found.reports.is_empty());
    }
}
