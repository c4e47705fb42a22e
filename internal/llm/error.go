package llm

// statusError classifies a failed call by its HTTP status; 0 is a connection error. The caller adds the message.
func statusError(status int) *Error {
	e := &Error{Type: Failed, Status: status}
	switch {
	case status == 0:
		e.Retryable = true
	case status == 429:
		e.Type, e.Retryable = RateLimited, true
	case status == 529, status == 503:
		e.Type, e.Retryable = Overloaded, true
	case status == 402:
		e.Type = Billing
	case status == 408, status >= 500:
		e.Retryable = true
	}
	return e
}
