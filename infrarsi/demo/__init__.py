"""The demo: two small real trainers under `trainers/`, plain files that are copied into a new repository."""
