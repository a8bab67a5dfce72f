"""The forms of a verification's report: text, JSON and HTML."""
