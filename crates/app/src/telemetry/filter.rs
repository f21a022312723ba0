//! The filter of the log, which may be another one while the process runs.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::{Context, Layer};

/// A filter that can be replaced. What it lets through costs no lock: that is asked once for each place in the code.
#[derive(Clone)]
pub(super) struct LiveFilter(Arc<ArcSwap<EnvFilter>>);

impl LiveFilter {
    pub(super) fn new(filter: EnvFilter) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(filter)))
    }

    pub(super) fn replace(&self, filter: EnvFilter) {
        self.0.store(Arc::new(filter));
        tracing_core::callsite::rebuild_interest_cache();
    }
}

impl<S: Subscriber> Layer<S> for LiveFilter {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        <EnvFilter as Layer<S>>::register_callsite(&self.0.load(), metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        <EnvFilter as Layer<S>>::max_level_hint(&self.0.load())
    }

    fn enabled(&self, metadata: &Metadata<'_>, context: Context<'_, S>) -> bool {
        self.0.load().enabled(metadata, context)
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        self.0.load().on_new_span(attributes, id, context);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        self.0.load().on_record(id, values, context);
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        self.0.load().on_enter(id, context);
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        self.0.load().on_exit(id, context);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        self.0.load().on_close(id, context);
    }
}
