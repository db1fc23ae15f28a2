"""What one message or collective costs on a network, by closed forms and flow shops. Knows no run."""
