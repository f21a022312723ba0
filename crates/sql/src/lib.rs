//! Durable records in SQL: SQLite for one instance, PostgreSQL for several.
