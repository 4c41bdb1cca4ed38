//! Attributes of values, as the sandbox lets templates see them. What Python has and this evaluator
//! does not is an error that names it: an empty text in its place would be another prompt.

use super::budget::charge_bytes;
use super::methods;
use super::value::View;
use super::{fail, Result, Value};

/// As much of a name as a message shows.
fn brief(name: &str) -> &str {
    let end = name.char_indices().nth(100).map_or(name.len(), |(at, _)| at);
    &name[..end]
}

fn no_attribute<'t>(object: &Value<'t>, name: &str) -> Value<'t> {
    Value::Undefined(
        format!("'{}' has no attribute '{}'", object.object_name(), brief(name)).into(),
    )
}

/// Undefined, for a key that nothing is found by.
pub fn no_item<'t>(object: &Value<'t>, key: &Value<'t>) -> Result<Value<'t>> {
    let key = super::repr::repr(key)?;
    Ok(Value::Undefined(format!("{} has no element {}", object.object_name(), brief(&key)).into()))
}

pub fn is_hashable(key: &Value<'_>) -> bool {
    match key {
        Value::List(_) | Value::Dict(_) | Value::Tuple(_) | Value::View(_) => {
            super::dict::check_hashable(key).is_ok()
        }
        _ => true,
    }
}

/// Public attributes of Python's and Jinja's own types that templates may reach there and not here.
fn not_supported(object: &Value<'_>, name: &str) -> bool {
    let names: &[&str] = match object {
        Value::Int(_) | Value::BigInt(_) | Value::Bool(_) => &[
            "as_integer_ratio",
            "bit_count",
            "bit_length",
            "conjugate",
            "denominator",
            "from_bytes",
            "imag",
            "is_integer",
            "numerator",
            "real",
            "to_bytes",
        ],
        Value::Float(_) => &[
            "as_integer_ratio",
            "conjugate",
            "from_number",
            "fromhex",
            "hex",
            "imag",
            "is_integer",
            "real",
        ],
        Value::View(view) => match &**view {
            View::Values(_) | View::Keys(_) | View::Items(_) => &["isdisjoint", "mapping"],
            View::Range(_) => &[],
        },
        Value::Iter(_) => &[
            "close",
            "gi_code",
            "gi_frame",
            "gi_running",
            "gi_suspended",
            "gi_yieldfrom",
            "send",
            "throw",
        ],
        Value::Macro(_) => {
            &["arguments", "caller", "catch_kwargs", "catch_varargs", "explicit_caller"]
        }
        Value::Loop(_) => &["undefined"],
        // Those of the classes; plain functions have none that the sandbox shows.
        Value::Function("range") => &["count", "index", "start", "step", "stop"],
        Value::Function("dict") => &[
            "clear",
            "copy",
            "fromkeys",
            "get",
            "items",
            "keys",
            "pop",
            "popitem",
            "setdefault",
            "update",
            "values",
        ],
        Value::Function("cycler") => &["current", "next", "reset"],
        _ => &[],
    };
    names.contains(&name)
}

fn python_attribute<'t>(object: &Value<'t>, name: &str) -> Result<Option<Value<'t>>> {
    let found = match object {
        Value::Namespace(fields) => {
            charge_bytes(name.len())?;
            fields.borrow().get_name(name).cloned()
        }
        Value::Loop(state) => state.attribute(name),
        _ => methods::property(object, name)
            .or_else(|| methods::find(object, name).map(|method| Value::method(object, method))),
    };
    let is_template = matches!(object, Value::Function("self"));
    if found.is_none() && (is_template || not_supported(object, name)) {
        fail!(
            "attribute '{name}' of '{}' object is not supported in chat templates",
            object.type_name()
        );
    }
    Ok(found)
}

/// Internals that an undefined value has as well; asking it for any other name is its error.
const OF_UNDEFINED: [&str; 16] = [
    "__bool__",
    "__class__",
    "__dir__",
    "__doc__",
    "__eq__",
    "__getattr__",
    "__getattribute__",
    "__hash__",
    "__init__",
    "__init_subclass__",
    "__iter__",
    "__len__",
    "__module__",
    "__new__",
    "__repr__",
    "__str__",
];

/// What the sandbox keeps from templates: internals, and whatever would change a value.
fn is_unsafe(object: &Value<'_>, name: &str) -> bool {
    if name.starts_with("__") {
        return true;
    }
    match object {
        Value::Namespace(_) => name.starts_with('_'),
        Value::Macro(_) | Value::Loop(_) | Value::Cycler(_) | Value::Joiner(_) => {
            name.starts_with('_')
        }
        Value::Tuple(items) if items.is_group => {
            matches!(name, "_asdict" | "_field_defaults" | "_fields" | "_make" | "_replace")
        }
        Value::List(_) => {
            matches!(
                name,
                "append" | "clear" | "extend" | "insert" | "pop" | "remove" | "reverse" | "sort"
            )
        }
        Value::Dict(_) => matches!(name, "clear" | "pop" | "popitem" | "setdefault" | "update"),
        _ => false,
    }
}

fn unsafe_attribute<'t>(object: &Value<'t>, name: &str) -> Value<'t> {
    Value::Undefined(
        format!(
            "access to attribute '{}' of '{}' object is unsafe.",
            brief(name),
            object.type_name()
        )
        .into(),
    )
}

/// An attribute by its name, no item.
pub fn named<'t>(object: &Value<'t>, name: &str) -> Result<Value<'t>> {
    if is_unsafe(object, name) {
        return Ok(unsafe_attribute(object, name));
    }
    Ok(python_attribute(object, name)?.unwrap_or_else(|| no_attribute(object, name)))
}

/// object.name: the attribute of the Python object, else its item.
pub fn get<'t>(object: &Value<'t>, name: &str) -> Result<Value<'t>> {
    if let (Value::Markup(_), "escape" | "striptags" | "unescape") = (object, name) {
        fail!("attribute '{name}' of 'Markup' object is not supported in chat templates");
    }
    let object = &object.plain();
    if !OF_UNDEFINED.contains(&name) {
        object.check_defined()?;
    }
    if let Value::Dict(dict) = object {
        // Most names that begin so are no attributes of a dict, so that its own key is found.
        let is_attribute = methods::find(object, name).is_some()
            || (is_unsafe(object, name) && !name.starts_with("__"));
        if !is_attribute {
            charge_bytes(name.len())?;
            if let Some(value) = dict.get_name(name) {
                return Ok(value.clone());
            }
        }
    }
    named(object, name)
}
