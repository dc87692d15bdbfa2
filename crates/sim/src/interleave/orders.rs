//! The calls of the threads, and the orders in which one thread could have made the same calls.

use super::operations::Operation;
use super::scene::View;
use butterfs_testkit::operation::{Outcome, agree};
use butterfs_testkit::promise::{History, ModelState, Promise};
use rustix::io::Errno;
use std::sync::Arc;

/// One operation of a run. The moments count what began and ended in the whole run; the events are those of the device.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its place in the list of operations.
    pub operation: usize,
    /// Which thread.
    pub thread: usize,
    /// Moments.
    pub began: usize,
    /// Moments; none while it runs.
    pub ended: Option<usize>,
    /// Events of the device when it began.
    pub began_events: usize,
    /// Events of the device when it ended.
    pub ended_events: Option<usize>,
    /// The result.
    pub outcome: Option<Outcome>,
    /// The sentence of its error.
    pub said: String,
}

/// One order: the calls, each with the view after it and what its success promised.
#[derive(Clone, Default)]
pub struct Order {
    /// Places in the list of calls.
    pub calls: Vec<usize>,
    views: Vec<View>,
    promises: Vec<Option<Promise>>,
}

impl Order {
    /// The view at the end.
    pub fn last<'a>(&'a self, first: &'a View) -> &'a View {
        self.views.last().unwrap_or(first)
    }

    /// The states that a crash after `prefix` events may show; `before` are the states since the last commit before all
    /// calls.
    pub fn history(&self, before: &[Arc<ModelState>], calls: &[Call], prefix: usize) -> History {
        let mut history = History::of(Arc::clone(&before[0]));
        before[1..].iter().for_each(|state| history.add(Arc::clone(state)));
        for (number, (call, view)) in self.calls.iter().zip(&self.views).enumerate() {
            history.add(ModelState::new(&view.model));
            let call = &calls[*call];
            let kept = call.ended_events.is_some_and(|ended| ended <= prefix) && matches!(call.outcome, Some(Ok(_)));
            match self.promises[number].filter(|_| kept) {
                // Data that was written while it ran may have come too late for it.
                Some(Promise::All) => {
                    let earlier = |other: &&usize| calls[**other].ended.is_some_and(|ended| ended < call.began);
                    let covered = self.calls.iter().take_while(earlier).count();
                    history.promise_at(before.len() - 1 + covered, Promise::All);
                    history.promise(Promise::Names);
                }
                Some(promise) => history.promise(promise),
                None => {}
            }
        }
        history
    }
}

/// All orders of `calls` that keep what was over before something else began, and give the outcomes that were seen. Of
/// a call that has not ended any outcome will do.
pub fn orders(operations: &[Operation], first: &View, calls: &[Call]) -> Vec<Order> {
    let mut found = Vec::new();
    let mut order = Order::default();
    extend(operations, first, calls, &mut order, &mut found);
    found
}

fn extend(operations: &[Operation], first: &View, calls: &[Call], order: &mut Order, found: &mut Vec<Order>) {
    if order.calls.len() == calls.len() {
        found.push(order.clone());
        return;
    }
    let left: Vec<usize> = (0..calls.len()).filter(|call| !order.calls.contains(call)).collect();
    for next in &left {
        let call = &calls[*next];
        let too_early = left.iter().any(|other| calls[*other].ended.is_some_and(|ended| ended < call.began));
        if too_early {
            continue;
        }
        let operation = &operations[call.operation];
        let mut view = order.last(first).clone();
        let promise = (operation.promise)(&view);
        let told = if is_refused(operations, calls, *next) { None } else { (operation.told)(&mut view) };
        let fits = match (&told, &call.outcome) {
            (Some(told), Some(outcome)) => agree(told, outcome),
            // What fails changes nothing.
            (None, _) | (_, None) => true,
        };
        if fits {
            order.calls.push(*next);
            order.views.push(view);
            order.promises.push(promise);
            extend(operations, first, calls, order, found);
            order.calls.pop();
            order.views.pop();
            order.promises.pop();
        }
    }
}

/// Whether a call was refused because of another one that ran at some time while it did.
fn is_refused(operations: &[Operation], calls: &[Call], number: usize) -> bool {
    let call = &calls[number];
    let Some(beside) = operations[call.operation].refused_beside else { return false };
    let meets = |other: &Call| {
        operations[other.operation].name == beside
            && other.ended.is_none_or(|ended| ended > call.began)
            && call.ended.is_none_or(|ended| ended > other.began)
    };
    call.outcome == Some(Err(Errno::PERM)) && calls.iter().any(meets)
}

/// The answers of the operations in each order, for a message.
pub fn told_in_orders(operations: &[Operation], first: &View, calls: &[Call]) -> String {
    let free: Vec<Call> = calls.iter().map(|call| Call { outcome: None, ..call.clone() }).collect();
    let mut text = String::new();
    for order in orders(operations, first, &free).iter().take(6) {
        let mut view = first.clone();
        for call in &order.calls {
            let operation = &operations[calls[*call].operation];
            text += &format!("    {}: {:?}\n", operation.name, (operation.told)(&mut view));
        }
        text += "    or\n";
    }
    text
}
