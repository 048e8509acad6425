//! Errors of model configurations.

use plimsoll_graph::GraphError;

/// Why a configuration is not a model that can run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A configuration file is not what its class needs.
    #[error("{component}: the configuration is not valid: {cause}")]
    Config {
        /// Name of the component.
        component: String,
        /// Parser's message.
        cause: String,
    },
    /// A value is out of the range that makes sense.
    #[error("{component}: {field} is {value}, expected {expected}")]
    Value {
        /// Name of the component.
        component: String,
        /// Name of the field.
        field: String,
        /// What it is.
        value: String,
        /// What it may be.
        expected: String,
    },
    /// A request that the model cannot take.
    #[error("{what} is {value}: {expected}")]
    Request {
        /// Option's name.
        what: String,
        /// What was asked for.
        value: String,
        /// What may be asked for.
        expected: String,
    },
    /// The configuration contradicts itself.
    #[error(transparent)]
    Graph(#[from] GraphError),
}
