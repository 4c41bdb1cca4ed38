//! Variables. A scope sees those around it; macros keep the scope that they were defined in.

use std::cell::RefCell;
use std::rc::Rc;

use super::Value;

pub struct Scope<'t> {
    variables: RefCell<Vec<(&'t str, Value<'t>)>>,
    parent: Option<Rc<Scope<'t>>>,
}

impl<'t> Scope<'t> {
    pub fn root() -> Rc<Scope<'t>> {
        Rc::new(Scope { variables: RefCell::default(), parent: None })
    }

    pub fn inside(parent: &Rc<Scope<'t>>) -> Rc<Scope<'t>> {
        Rc::new(Scope { variables: RefCell::default(), parent: Some(parent.clone()) })
    }

    pub fn set(&self, name: &'t str, value: Value<'t>) {
        let mut variables = self.variables.borrow_mut();
        match variables.iter_mut().find(|(known, _)| *known == name) {
            Some(entry) => entry.1 = value,
            None => variables.push((name, value)),
        }
    }

    pub fn get(&self, name: &str) -> Option<Value<'t>> {
        let mut scope = self;
        loop {
            if let Some((_, value)) =
                scope.variables.borrow().iter().find(|(known, _)| *known == name)
            {
                return Some(value.clone());
            }
            scope = scope.parent.as_deref()?;
        }
    }

    /// A macro that is stored in the scope it closes over would keep both alive for ever.
    pub fn clear(&self) {
        self.variables.borrow_mut().clear();
    }
}
