//! What the gateway proves to others who it is with.

use std::fmt;
use std::sync::Arc;

/// A secret that may change while the gateway runs.
#[derive(Clone)]
pub struct Secret(Arc<dyn Fn() -> String + Send + Sync>);

impl Secret {
    /// One that does not change.
    pub fn fixed(value: &str) -> Self {
        let value = value.to_owned();
        Self(Arc::new(move || value.clone()))
    }

    /// One that is what `read` says when it is needed.
    pub fn read_by(read: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// What it is now.
    pub fn read(&self) -> String {
        (self.0)()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_show_itself() {
        assert_eq!(format!("{:?}", Secret::fixed("hunter2")), "Secret(..)");
    }
}
