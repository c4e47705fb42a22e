package llm

import (
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/outboard-dev/outboard"
)

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

// loadError is the error for a request that could not be made because of our own side: content that cannot be loaded.
func loadError(err error) *Error {
	return &Error{Type: Failed, Message: err.Error(), Retryable: outboard.KindOf(err) == outboard.Unavailable, Err: err}
}

// statusOf maps the error types and codes that providers send inside a stream, after a status of 200, to the
// status they stand for. 0: unknown.
func statusOf(kind string) int {
	switch kind {
	case "invalid_request_error", "invalid_prompt":
		return 400
	case "authentication_error":
		return 401
	case "billing_error", "insufficient_quota":
		return 402
	case "permission_error":
		return 403
	case "not_found_error":
		return 404
	case "request_too_large", "context_length_exceeded":
		return 413
	case "rate_limit_error", "rate_limit_exceeded":
		return 429
	case "api_error", "server_error", "internal_error":
		return 500
	case "timeout_error":
		return 504
	case "overloaded_error", "server_is_overloaded", "slow_down":
		return 529
	}
	return 0
}

// tooLongRE finds, in the text of a request that was refused, that the conversation is too long. Few providers
// have a code for it, and servers that speak another's wire have words of their own.
var tooLongRE = regexp.MustCompile(`(?i)prompt is too long|input is too long|context[ _](length|limit|window|size)` +
	`|exceeds the maximum number of tokens|maximum prompt length|too many tokens`)

// pictureRE finds, in the text of a request that was refused, that a picture or document was the reason.
var pictureRE = regexp.MustCompile(`(?i)(^|[^a-z])(images?|pictures?|image_url|input_image|documents?|pdfs?|media[ _]type)([^a-z]|$)`)

// tooLong reports whether a provider refused a conversation for its length.
func tooLong(status int, kind, message string) bool {
	return status == http.StatusRequestEntityTooLarge || status == http.StatusBadRequest &&
		tooLongRE.MatchString(kind+" "+message)
}

// providerError is the error for what a provider itself reported, with a status of its answer or as an event of
// its stream.
func providerError(status int, kind, message string, resp *http.Response) *Error {
	inner := statusOf(kind)
	if status < 400 {
		status = inner
		if status == 0 {
			status = 500 // a stream that fails for a reason of its own: worth another try
		}
	}
	e := statusError(status)
	e.TooLong = tooLong(status, kind, message)
	e.Picture = status == http.StatusBadRequest && pictureRE.MatchString(kind+" "+message)
	if inner == 402 { // a quota that is used up comes as 429 from some
		e.Type, e.Retryable = Billing, false
	}
	e.Message = strconv.Itoa(status)
	if kind != "" {
		e.Message += " " + kind
	}
	if message == "" {
		message = http.StatusText(status)
	}
	e.Message += ": " + message
	if resp == nil {
		return e
	}
	e.RetryAfter = retryAfter(resp.Header)
	switch resp.Header.Get("X-Should-Retry") {
	case "false":
		e.Retryable = false
	case "true":
		e.Retryable = true
	}
	for _, name := range []string{"Request-Id", "X-Request-Id"} {
		if id := resp.Header.Get(name); id != "" {
			e.Message += fmt.Sprintf(" (request %s)", id)
			break
		}
	}
	return e
}

// retryAfter reads retry-after-ms or retry-after, which is in seconds or a date. Nonsense is 0.
func retryAfter(h http.Header) time.Duration {
	for _, c := range []struct {
		name string
		unit time.Duration
	}{{"Retry-After-Ms", time.Millisecond}, {"Retry-After", time.Second}} {
		text := h.Get(c.name)
		if v, err := strconv.ParseFloat(text, 64); err == nil {
			if v > 0 && v*float64(c.unit) < math.MaxInt64/2 {
				return time.Duration(v * float64(c.unit))
			}
			continue
		}
		if at, err := http.ParseTime(text); err == nil {
			return max(0, time.Until(at))
		}
	}
	return 0
}
