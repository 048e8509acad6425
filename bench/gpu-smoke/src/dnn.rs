//! cuDNN's backend interface: descriptors, and a plan from an operation graph.
//!
//! The header-only C++ front end is not usable from Rust; this is the part of it that one operation graph needs.

use std::ffi::{CStr, c_void};
use std::ptr;

use cudarc::cudnn::sys;
use cudarc::cudnn::sys::cudnnBackendAttributeName_t as Name;
use cudarc::cudnn::sys::cudnnBackendAttributeType_t as Type;
use cudarc::cudnn::sys::cudnnBackendDescriptorType_t as Descriptor;

use crate::error::{Error, Result};
use crate::gpu::{Address, Stream};

/// Checks a status and adds the library's own words about it.
fn check(call: &str, status: sys::cudnnStatus_t) -> Result<()> {
    if status == sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS {
        return Ok(());
    }
    let mut text = [0_u8; 512];
    // SAFETY: the library writes at most the given length, with a final NUL.
    unsafe { sys::cudnnGetLastErrorString(text.as_mut_ptr().cast(), text.len()) };
    let message = CStr::from_bytes_until_nul(&text)
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default();
    Err(Error::Dnn { call: call.into(), status: format!("{status:?}"), message })
}

/// A library handle.
pub(crate) struct Dnn {
    handle: sys::cudnnHandle_t,
}

impl Dnn {
    /// Creates a handle.
    pub(crate) fn new() -> Result<Self> {
        let mut handle = ptr::null_mut();
        // SAFETY: the pointer is to a local.
        check("cudnnCreate", unsafe { sys::cudnnCreate(&mut handle) })?;
        Ok(Self { handle })
    }

    /// The library's version, 91900 for 9.19.0.
    pub(crate) fn version() -> usize {
        // SAFETY: the call takes nothing and reads a constant.
        unsafe { sys::cudnnGetVersion() }
    }

    /// Later work goes to `stream`.
    pub(crate) fn set_stream(&self, stream: Stream) -> Result<()> {
        // SAFETY: both handles live as long as the process.
        check("cudnnSetStream", unsafe { sys::cudnnSetStream(self.handle, stream.raw.cast()) })
    }

    /// Runs a plan on (uid, address) pairs; a by-value tensor's address is that of the host value.
    pub(crate) fn execute(
        &self,
        plan: &Plan,
        operands: &[(i64, u64)],
        workspace: Address,
    ) -> Result<()> {
        let pack = Node::new(Descriptor::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
        let uids: Vec<i64> = operands.iter().map(|operand| operand.0).collect();
        let addresses: Vec<u64> = operands.iter().map(|operand| operand.1).collect();
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, Type::CUDNN_TYPE_INT64, &uids)?;
        pack.set(
            Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
            Type::CUDNN_TYPE_VOID_PTR,
            &addresses,
        )?;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, Type::CUDNN_TYPE_VOID_PTR, &[workspace])?;
        pack.finish("variant pack")?;
        // SAFETY: plan and pack are finalized descriptors; the operands' ranges are those that the plan was built for.
        check("cudnnBackendExecute", unsafe {
            sys::cudnnBackendExecute(self.handle, plan.node.raw, pack.raw)
        })
    }

    /// Every plan that the heuristic offers for an operation graph, best first; those that cannot be finished carry the reason.
    pub(crate) fn plans(&self, operations: &[Node]) -> Result<Vec<Result<Plan>>> {
        let graph = Node::new(Descriptor::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        let raw: Vec<_> = operations.iter().map(|operation| operation.raw).collect();
        graph.set(
            Name::CUDNN_ATTR_OPERATIONGRAPH_OPS,
            Type::CUDNN_TYPE_BACKEND_DESCRIPTOR,
            &raw,
        )?;
        graph.set(
            Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE,
            Type::CUDNN_TYPE_HANDLE,
            &[self.handle],
        )?;
        graph.finish("operation graph")?;
        let heuristic = Node::new(Descriptor::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
        heuristic.set(
            Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
            Type::CUDNN_TYPE_BACKEND_DESCRIPTOR,
            &[graph.raw],
        )?;
        heuristic.set(
            Name::CUDNN_ATTR_ENGINEHEUR_MODE,
            Type::CUDNN_TYPE_HEUR_MODE,
            &[sys::cudnnBackendHeurMode_t::CUDNN_HEUR_MODE_A],
        )?;
        heuristic.finish("heuristic")?;
        let configs = heuristic.children(
            Name::CUDNN_ATTR_ENGINEHEUR_RESULTS,
            Descriptor::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
        )?;
        Ok(configs.into_iter().map(|config| self.plan(config)).collect())
    }

    fn plan(&self, config: Node) -> Result<Plan> {
        let name = config_name(&config)?;
        let node = Node::new(Descriptor::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
        node.set(Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, Type::CUDNN_TYPE_HANDLE, &[self.handle])?;
        node.set(
            Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
            Type::CUDNN_TYPE_BACKEND_DESCRIPTOR,
            &[config.raw],
        )?;
        node.finish(&format!("plan of {name}"))?;
        let workspace: i64 =
            node.get(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, Type::CUDNN_TYPE_INT64)?;
        Ok(Plan { node, name, workspace_bytes: workspace.cast_unsigned(), _config: Some(config) })
    }

    /// Writes a plan as text and makes it again from the text; returns the text's length.
    pub(crate) fn through_text(&self, plan: &Plan) -> Result<(usize, Plan)> {
        let name = Name::CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION;
        let count = plan.node.count(name, Type::CUDNN_TYPE_CHAR)?;
        let mut text = vec![0_u8; count];
        plan.node.read(name, Type::CUDNN_TYPE_CHAR, &mut text)?;
        let node = Node::new(Descriptor::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
        node.set(Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, Type::CUDNN_TYPE_HANDLE, &[self.handle])?;
        node.set(name, Type::CUDNN_TYPE_CHAR, &text)?;
        node.finish("plan from text")?;
        Ok((
            count,
            Plan {
                node,
                name: plan.name.clone(),
                workspace_bytes: plan.workspace_bytes,
                _config: None,
            },
        ))
    }
}

/// A finished execution plan.
pub(crate) struct Plan {
    node: Node,
    /// Engine and knobs.
    pub(crate) name: String,
    /// Workspace that a call needs.
    pub(crate) workspace_bytes: u64,
    _config: Option<Node>,
}

/// One backend descriptor.
pub(crate) struct Node {
    raw: sys::cudnnBackendDescriptor_t,
}

impl Node {
    /// Creates an empty descriptor.
    pub(crate) fn new(kind: Descriptor) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer is to a local.
        check(&format!("creating {kind:?}"), unsafe {
            sys::cudnnBackendCreateDescriptor(kind, &mut raw)
        })?;
        Ok(Self { raw })
    }

    /// Sets an attribute.
    pub(crate) fn set<T>(&self, name: Name, kind: Type, values: &[T]) -> Result<()> {
        // SAFETY: the library copies `values.len()` elements of the type that `kind` names.
        let status = unsafe {
            sys::cudnnBackendSetAttribute(
                self.raw,
                name,
                kind,
                values.len() as i64,
                values.as_ptr().cast(),
            )
        };
        check(&format!("setting {name:?}"), status)
    }

    /// Sets an attribute that holds another descriptor.
    pub(crate) fn refer(&self, name: Name, other: &Node) -> Result<()> {
        self.set(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &[other.raw])
    }

    /// Finalizes the descriptor.
    pub(crate) fn finish(&self, what: &str) -> Result<()> {
        // SAFETY: the descriptor is ours.
        check(&format!("finalizing {what}"), unsafe { sys::cudnnBackendFinalize(self.raw) })
    }

    fn fetch(&self, name: Name, kind: Type, room: usize, values: *mut c_void) -> Result<usize> {
        let mut count = 0;
        // SAFETY: `values` has room for `room` elements, or is null where `room` is 0.
        let status = unsafe {
            sys::cudnnBackendGetAttribute(self.raw, name, kind, room as i64, &mut count, values)
        };
        check(&format!("reading {name:?}"), status)?;
        Ok(count as usize)
    }

    fn count(&self, name: Name, kind: Type) -> Result<usize> {
        self.fetch(name, kind, 0, ptr::null_mut())
    }

    fn read<T>(&self, name: Name, kind: Type, values: &mut [T]) -> Result<()> {
        self.fetch(name, kind, values.len(), values.as_mut_ptr().cast()).map(drop)
    }

    fn get<T: Default>(&self, name: Name, kind: Type) -> Result<T> {
        let mut value = [T::default()];
        self.read(name, kind, &mut value)?;
        let [value] = value;
        Ok(value)
    }

    /// The descriptors that an attribute holds; the library fills in descriptors that the caller made.
    fn children(&self, name: Name, kind: Descriptor) -> Result<Vec<Node>> {
        let count = self.count(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR)?;
        let nodes = (0..count).map(|_| Node::new(kind)).collect::<Result<Vec<_>>>()?;
        let mut raw: Vec<_> = nodes.iter().map(|node| node.raw).collect();
        let filled =
            self.fetch(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, count, raw.as_mut_ptr().cast())?;
        Ok(nodes.into_iter().take(filled).collect())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and is not used again; a failure has no reader.
        unsafe { sys::cudnnBackendDestroyDescriptor(self.raw) };
    }
}

/// Engine number and knob choices of a configuration: what a plan can name.
fn config_name(config: &Node) -> Result<String> {
    let engines = config
        .children(Name::CUDNN_ATTR_ENGINECFG_ENGINE, Descriptor::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?;
    let mut name = String::from("engine");
    for engine in engines {
        let index: i64 =
            engine.get(Name::CUDNN_ATTR_ENGINE_GLOBAL_INDEX, Type::CUDNN_TYPE_INT64)?;
        name += &format!(" {index}");
    }
    let knobs = config.children(
        Name::CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
        Descriptor::CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
    )?;
    for knob in knobs {
        let kind: i32 =
            knob.get(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, Type::CUDNN_TYPE_KNOB_TYPE)?;
        let value: i64 =
            knob.get(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, Type::CUDNN_TYPE_INT64)?;
        name += &format!(" k{kind}={value}");
    }
    Ok(name)
}
