"""Host allreduce algorithms as pure schedules: told messages, answering with messages."""
