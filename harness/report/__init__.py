"""Results for people: terminal tables, one plot a function, one offline page."""
