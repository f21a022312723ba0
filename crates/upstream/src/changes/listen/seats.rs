//! Those who listen, and how it stands with each of them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use drawbridge_core::Fault;
use drawbridge_core::backend::Unsolicited;
use drawbridge_core::call::{Event, Reply};
use drawbridge_wire::Message;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{FIRST_PAUSE, MAX_PAUSE, Open, Refusal};
use crate::changes::Filter;
use crate::modern;

/// What a listener is told of what it wants.
#[derive(Debug, Clone)]
pub(super) enum Told {
    /// Nothing yet.
    Waiting,
    /// This is told of.
    Honoured(Arc<Filter>),
    /// It is not told of, or not any more.
    Refused(Refusal),
    /// The backend has ended it in good order.
    Ended(Arc<Reply>),
}

impl Told {
    /// Whether nothing follows for whoever was told that it is honoured.
    pub(super) fn is_end(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Ended(_))
    }
}

impl From<Told> for Event {
    fn from(told: Told) -> Self {
        match told {
            Told::Refused(refusal) => refusal.into(),
            Told::Ended(reply) => Self::Done(Reply::clone(&reply)),
            Told::Waiting | Told::Honoured(_) => Self::Fail(Fault::Draining),
        }
    }
}

struct Seat {
    number: u64,
    filter: Filter,
    to: Weak<dyn Unsolicited>,
    told: watch::Sender<Told>,
    /// It stays whatever it is told: a session's.
    lasts: bool,
    /// What may have changed since it was last told of.
    missed: Filter,
    /// It was refused together with others, and is asked for by itself.
    alone: bool,
    /// When what it wants is asked for again; `None`: at once.
    again: Option<Instant>,
    pause: Duration,
}

impl Seat {
    /// Whether it still wants to hear.
    fn is_there(&self) -> bool {
        self.to.strong_count() > 0 && (self.lasts || !self.told.borrow().is_end())
    }

    fn wants(&self, notification: &Message) -> bool {
        match &*self.told.borrow() {
            Told::Honoured(honoured) => honoured.wants(notification),
            _ => self.filter.wants(notification),
        }
    }
}

/// What has to be done for the listeners.
pub(super) struct Needs {
    /// What any of them wants.
    pub(super) wanted: Filter,
    /// What is to be asked for, and for whom.
    pub(super) ask: Vec<(Vec<u64>, Filter)>,
    /// When there is more to ask for.
    pub(super) retry: Option<Instant>,
}

#[derive(Default)]
struct All {
    last: u64,
    seats: Vec<Seat>,
    is_closed: bool,
}

/// All of them.
#[derive(Default)]
pub(super) struct Seats(Mutex<All>);

fn draining() -> Told {
    Told::Refused(Refusal::Fault(Fault::Draining))
}

impl Seats {
    /// Enters a listener that wants nothing yet; the number names it.
    pub(super) fn enter(&self, to: Weak<dyn Unsolicited>, lasts: bool) -> (u64, watch::Receiver<Told>) {
        let mut all = self.0.lock();
        all.last += 1;
        let number = all.last;
        let (told, hears) = watch::channel(if all.is_closed { draining() } else { Told::Waiting });
        let (filter, missed) = Default::default();
        let (alone, again, pause) = (false, None, FIRST_PAUSE);
        all.seats.push(Seat { number, filter, to, told, lasts, missed, alone, again, pause });
        (number, hears)
    }

    /// Gives a listener another filter.
    pub(super) fn set(&self, number: u64, filter: Filter) {
        let mut all = self.0.lock();
        if all.is_closed {
            return;
        }
        if let Some(seat) = all.seats.iter_mut().find(|seat| seat.number == number) {
            seat.filter = filter;
            (seat.alone, seat.again, seat.pause) = (false, None, FIRST_PAUSE);
            seat.told.send_replace(Told::Waiting);
        }
    }

    /// Takes a listener out.
    pub(super) fn leave(&self, number: u64) {
        self.0.lock().seats.retain(|seat| seat.number != number);
    }

    /// Nobody sees to them any more.
    pub(super) fn close(&self) {
        let mut all = self.0.lock();
        all.is_closed = true;
        all.seats.iter().for_each(|seat| drop(seat.told.send_replace(draining())));
    }

    /// Tells those who want to hear of it.
    pub(super) fn tell(&self, notification: &Message) {
        let wanted: Vec<_> = {
            let all = self.0.lock();
            let wanted = all.seats.iter().filter(|seat| seat.wants(notification));
            wanted.filter_map(|seat| seat.to.upgrade()).collect()
        };
        wanted.iter().for_each(|to: &Arc<dyn Unsolicited>| to.deliver(Event::Notify(notification.clone())));
    }

    /// What any of them wants.
    pub(super) fn wanted(&self) -> Filter {
        let mut wanted = Filter::default();
        let all = self.0.lock();
        all.seats.iter().filter(|seat| seat.is_there()).for_each(|seat| wanted.add(&seat.filter));
        wanted
    }

    /// Lets those know that have all they want from streams that were asked for what is `covered`, of which this is
    /// `honoured`; of the others what is not `coming` has to be asked for.
    pub(super) fn look(&self, covered: &Filter, honoured: &Filter, coming: &Filter) -> Needs {
        let now = Instant::now();
        let mut needs = Needs { wanted: Filter::default(), ask: Vec::new(), retry: None };
        let (mut together, mut asked) = (Vec::new(), Filter::default());
        let mut missed = Vec::new();
        for seat in self.0.lock().seats.iter_mut().filter(|seat| seat.is_there()) {
            needs.wanted.add(&seat.filter);
            let lacks = seat.filter.without(covered);
            if lacks.is_empty() {
                let was = std::mem::take(&mut seat.missed).in_common(&seat.filter);
                if !was.is_empty() {
                    missed.extend(seat.to.upgrade().map(|to| (to, was)));
                }
                seat.serve(honoured);
            } else if let Some(at) = seat.again.filter(|at| *at > now) {
                needs.retry = needs.retry.into_iter().chain([at]).min();
            } else if !lacks.without(coming).is_empty() {
                match seat.alone {
                    true => needs.ask.push((vec![seat.number], lacks)),
                    false => {
                        together.push(seat.number);
                        asked.add(&lacks);
                    }
                }
            }
        }
        if !together.is_empty() {
            needs.ask.push((together, asked));
        }
        for (to, missed) in missed {
            missed.everything().into_iter().for_each(|message| to.deliver(Event::Notify(message)));
        }
        needs
    }

    /// What these want is not told of. If they did not ask `alone`, it may be because of another of them.
    pub(super) fn refuse(&self, numbers: &[u64], alone: bool, refusal: &Refusal) {
        let mut all = self.0.lock();
        for seat in all.seats.iter_mut().filter(|seat| numbers.contains(&seat.number)) {
            if !alone {
                seat.alone = true;
                continue;
            }
            let is_waiting = matches!(*seat.told.borrow(), Told::Waiting);
            // Whoever was told that it is honoured waits for a backend that is away.
            if is_waiting || (refusal.ends_listens() && !seat.lasts) {
                seat.told.send_replace(Told::Refused(refusal.clone()));
            }
            // What was honoured once may be again.
            let wait = if is_waiting && refusal.is_final() { super::FOR_GOOD } else { seat.pause };
            seat.again = Some(Instant::now() + wait);
            seat.pause = (seat.pause * 2).min(MAX_PAUSE);
        }
    }

    /// A stream is lost; it may be opened `again` from then on. If the backend has ended it `in_order`, so are the listens
    /// that it served.
    pub(super) fn lose(&self, lost: &Open, again: Instant, in_order: Option<&Arc<Reply>>) {
        for seat in &mut self.0.lock().seats {
            let had = seat.filter.in_common(&lost.honoured);
            if had.is_empty() && seat.filter.in_common(&lost.asked).is_empty() {
                continue;
            }
            if let Some(reply) = in_order.filter(|_| !seat.lasts) {
                seat.told.send_replace(Told::Ended(reply.clone()));
                continue;
            }
            if !matches!(*seat.told.borrow(), Told::Waiting) {
                seat.again = Some(again);
            }
            seat.missed.add(&had);
        }
    }
}

impl Seat {
    /// Streams tell of all that it wants, of which this is `honoured`.
    fn serve(&mut self, honoured: &Filter) {
        (self.alone, self.again, self.pause) = (false, None, FIRST_PAUSE);
        let honoured = self.filter.in_common(honoured);
        let next = match &*self.told.borrow() {
            Told::Honoured(known) if **known == honoured => return,
            // Whoever was promised more has to hear of it, and can listen again.
            Told::Honoured(known) if !self.lasts && !known.without(&honoured).is_empty() => {
                Told::Ended(Arc::new(modern::end_of_listen()))
            }
            _ => Told::Honoured(Arc::new(honoured)),
        };
        self.told.send_replace(next);
    }
}
