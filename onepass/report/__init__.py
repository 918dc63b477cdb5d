"""From folders of runs to tables and figures; nothing here trains."""
