//! Variables. A scope sees those around it; macros keep the scope that they were defined in.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use super::budget::{charge, ELEMENT, NEW_ELEMENT};
use super::exec::LoopState;
use super::{Dict, Result, Value};

/// So many variables are found as quickly by looking at each.
const FEW: usize = 16;

#[derive(Default)]
struct Variables<'t> {
    list: Vec<(&'t str, Value<'t>)>,
    /// Where each is, once there are more than a few.
    positions: HashMap<&'t str, usize>,
}

impl<'t> Variables<'t> {
    fn position(&self, name: &str) -> Option<usize> {
        if self.list.len() > FEW {
            return self.positions.get(name).copied();
        }
        self.list.iter().position(|(known, _)| *known == name)
    }

    fn add(&mut self, name: &'t str, value: Value<'t>) {
        self.list.push((name, value));
        if self.list.len() <= FEW {
            return;
        }
        for at in self.positions.len()..self.list.len() {
            self.positions.insert(self.list[at].0, at);
        }
    }
}

pub struct Scope<'t> {
    variables: RefCell<Variables<'t>>,
    parent: Option<Rc<Scope<'t>>>,
    is_kept: Cell<bool>,
}

impl<'t> Scope<'t> {
    pub fn root() -> Rc<Scope<'t>> {
        Rc::new(Scope { variables: RefCell::default(), parent: None, is_kept: Cell::new(false) })
    }

    pub fn inside(parent: &Rc<Scope<'t>>) -> Rc<Scope<'t>> {
        Rc::new(Scope {
            variables: RefCell::default(),
            parent: Some(parent.clone()),
            is_kept: Cell::new(false),
        })
    }

    pub fn set(&self, name: &'t str, value: Value<'t>) -> Result<()> {
        charge(NEW_ELEMENT + name.len() / 4)?;
        let mut variables = self.variables.borrow_mut();
        match variables.position(name) {
            Some(at) => variables.list[at].1 = value,
            None => variables.add(name, value),
        }
        Ok(())
    }

    pub fn get(&self, name: &str) -> Result<Option<Value<'t>>> {
        let mut scope = self;
        loop {
            charge(ELEMENT + name.len() / 4)?;
            let variables = scope.variables.borrow();
            if let Some(at) = variables.position(name) {
                return Ok(Some(variables.list[at].1.clone()));
            }
            drop(variables);
            match scope.parent.as_deref() {
                Some(parent) => scope = parent,
                None => return Ok(None),
            }
        }
    }
}

/// What may change after it was made: scopes that something else holds, namespaces, loops that
/// remember values. Such things can hold themselves, which would keep them for ever, or make a chain
/// of any length, which would be dropped link by link, each inside the other. So all of them live
/// until the end, and are emptied before the first one is dropped.
#[derive(Default)]
pub struct Kept<'t> {
    scopes: Vec<Rc<Scope<'t>>>,
    namespaces: Vec<Rc<RefCell<Dict<'t>>>>,
    loops: Vec<Rc<LoopState<'t>>>,
}

impl<'t> Kept<'t> {
    /// A scope for something to hold, and those around it.
    pub fn scope(&mut self, scope: &Rc<Scope<'t>>) -> Rc<Scope<'t>> {
        let mut next = Some(scope);
        while let Some(scope) = next.filter(|scope| !scope.is_kept.replace(true)) {
            self.scopes.push(scope.clone());
            next = scope.parent.as_ref();
        }
        scope.clone()
    }

    pub fn namespace(&mut self, fields: Dict<'t>) -> Value<'t> {
        let namespace = Rc::new(RefCell::new(fields));
        self.namespaces.push(namespace.clone());
        Value::Namespace(namespace)
    }

    pub fn loop_state(&mut self, state: &Rc<LoopState<'t>>) {
        if !self.loops.last().is_some_and(|last| Rc::ptr_eq(last, state)) {
            self.loops.push(state.clone());
        }
    }

    pub fn empty_all(&mut self) {
        let variables: Vec<_> = self.scopes.iter().map(|scope| scope.variables.take()).collect();
        let fields: Vec<_> = self.namespaces.iter().map(|fields| fields.take()).collect();
        let seen: Vec<_> = self.loops.iter().map(|state| state.last_seen.take()).collect();
        drop((variables, fields, seen));
    }
}
