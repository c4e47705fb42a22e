//go:build !unix

package term

// OnResize does nothing: this system has no signal for it.
func OnResize(func()) (stop func()) { return func() {} }
