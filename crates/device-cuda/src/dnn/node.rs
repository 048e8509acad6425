//! cuDNN's backend descriptors: the C++ front end is headers only, and one operation needs this much of it.

use std::ffi::c_void;
use std::ptr;

use cudarc::cudnn::sys;
use cudarc::cudnn::sys::cudnnBackendAttributeName_t as Name;
use cudarc::cudnn::sys::cudnnBackendAttributeType_t as Type;
use cudarc::cudnn::sys::cudnnBackendDescriptorType_t as Kind;

use super::functions::DnnFunctions;
use crate::CudaError;

/// One backend descriptor, destroyed when dropped.
#[derive(Debug)]
pub(super) struct Node {
    functions: DnnFunctions,
    raw: sys::cudnnBackendDescriptor_t,
}

// SAFETY: a descriptor is plain host memory of the library, bound to no thread.
unsafe impl Send for Node {}
// SAFETY: once finalized it is only read.
unsafe impl Sync for Node {}

impl Node {
    /// Makes an empty descriptor.
    pub(super) fn new(functions: DnnFunctions, kind: Kind) -> Result<Self, CudaError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer is to a local.
        let status = unsafe { (functions.cudnnBackendCreateDescriptor)(kind, &mut raw) };
        functions.check(|| format!("creating {kind:?}"), status)?;
        Ok(Self { functions, raw })
    }

    pub(super) fn raw(&self) -> sys::cudnnBackendDescriptor_t {
        self.raw
    }

    /// Sets an attribute.
    pub(super) fn set<T>(&self, name: Name, kind: Type, values: &[T]) -> Result<(), CudaError> {
        // SAFETY: the library copies `values.len()` elements of the type that `kind` names.
        let status = unsafe {
            (self.functions.cudnnBackendSetAttribute)(
                self.raw,
                name,
                kind,
                values.len() as i64,
                values.as_ptr().cast(),
            )
        };
        self.functions.check(|| format!("setting {name:?}"), status)
    }

    /// Sets an attribute that holds another descriptor.
    pub(super) fn refer(&self, name: Name, other: &Node) -> Result<(), CudaError> {
        self.set(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &[other.raw])
    }

    /// Finalizes the descriptor.
    pub(super) fn finish(&self, what: &str) -> Result<(), CudaError> {
        // SAFETY: the descriptor is ours.
        let status = unsafe { (self.functions.cudnnBackendFinalize)(self.raw) };
        self.functions.check(|| format!("finalizing {what}"), status)
    }

    fn fetch(
        &self,
        name: Name,
        kind: Type,
        room: usize,
        values: *mut c_void,
    ) -> Result<usize, CudaError> {
        let mut count = 0;
        // SAFETY: `values` has room for `room` elements, or is null where `room` is 0.
        let status = unsafe {
            (self.functions.cudnnBackendGetAttribute)(
                self.raw,
                name,
                kind,
                room as i64,
                &mut count,
                values,
            )
        };
        self.functions.check(|| format!("reading {name:?}"), status)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// One value of an attribute.
    pub(super) fn get<T: Default>(&self, name: Name, kind: Type) -> Result<T, CudaError> {
        let mut value = T::default();
        self.fetch(name, kind, 1, ptr::from_mut(&mut value).cast())?;
        Ok(value)
    }

    /// The descriptors that an attribute holds; the library fills in descriptors that the caller made.
    pub(super) fn children(&self, name: Name, kind: Kind) -> Result<Vec<Node>, CudaError> {
        let count = self.fetch(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, ptr::null_mut())?;
        let nodes =
            (0..count).map(|_| Node::new(self.functions, kind)).collect::<Result<Vec<_>, _>>()?;
        let mut raw: Vec<_> = nodes.iter().map(|node| node.raw).collect();
        let values = raw.as_mut_ptr().cast();
        let filled = self.fetch(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, count, values)?;
        Ok(nodes.into_iter().take(filled).collect())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // SAFETY: ours, and not used again; a failure has no reader.
        unsafe { (self.functions.cudnnBackendDestroyDescriptor)(self.raw) };
    }
}
