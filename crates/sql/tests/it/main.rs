//! The contract of the records, over SQLite in memory, in a file, and over PostgreSQL. And what happens to a database:
//! migrations, restarts, networks that fall silent.

#[cfg(test)]
mod contract;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod files;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod migrations;
#[cfg(test)]
mod trail;
