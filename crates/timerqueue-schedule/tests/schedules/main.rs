//! Schedules alone: cron lines, calendars, zones, and what a store keeps of them.

mod calendar;
mod cron_grammar;
mod cron_oracle;
mod daylight_saving;
mod properties;
mod reports;
mod schedule;
mod second_opinion;
mod serialized;
mod support;
