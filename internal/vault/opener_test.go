package vault

import (
	"context"
	"encoding/base64"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboard-dev/outboard"
)

// moody is a key service that works, refuses or hangs.
type moody struct {
	mood  atomic.Pointer[string] // nil = it works
	calls atomic.Int32           // to decrypt
}

func (m *moody) be(mood string) { m.mood.Store(&mood) }

func (m *moody) encrypt(_ context.Context, plain []byte) (string, string, error) {
	return "k", base64.StdEncoding.EncodeToString(plain), nil
}

func (m *moody) decrypt(ctx context.Context, _, sealed string) ([]byte, error) {
	m.calls.Add(1)
	switch mood := m.mood.Load(); {
	case mood != nil && *mood == "hangs":
		<-ctx.Done()
		return nil, outboard.Errorf(outboard.Unavailable, "it took too long: %w", context.Cause(ctx))
	case mood != nil && *mood == "refuses":
		return nil, outboard.Errorf(outboard.Unavailable, "it refuses: %w", errors.New("sealed"))
	}
	return base64.StdEncoding.DecodeString(sealed)
}

// If this fails, requests wait for a key service that is away one after the other, each asks it anew, or they go
// on failing when it is back. The clock is the bubble's: its times are exact.
func TestKeyServiceAway(t *testing.T) {
	const crowd = 50
	for _, mood := range []string{"refuses", "hangs"} {
		t.Run(mood, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				service := new(moody)
				with := func() *Keeper {
					return New(Config{Store: r.store,
						Wrappers: []Wrapper{External{"moody", service}}})
				}
				r.Keeper = with()
				r.add(header("a", "api.example.com"), "s3cret-value")
				k := with() // a server that has just been started
				service.calls.Store(0)
				service.be(mood)
				all := func(atMost time.Duration, calls int32) {
					t.Helper()
					var wg sync.WaitGroup
					for range crowd {
						wg.Go(func() {
							begun := time.Now()
							_, err := k.Use(t.Context(), r.to("GET", "api.example.com", "/"))
							if took := time.Since(begun); outboard.KindOf(err) != outboard.Unavailable || err == nil ||
								took > atMost {
								t.Errorf("after %v (at most %v): %v", took, atMost, err)
							}
						})
					}
					wg.Wait()
					if got := service.calls.Load(); got != calls {
						t.Errorf("the service was asked %d times, not %d", got, calls)
					}
				}
				first := time.Duration(0)
				if mood == "hangs" {
					first = kmsTimeout
				}
				all(first, 1)
				all(0, 1) // the failure is remembered
				time.Sleep(keyRetry)
				all(min(first, keyRetry), 2)
				time.Sleep(keyRetry)
				all(min(first, keyRetry), 3)

				service.mood.Store(nil)
				back := time.Now()
				for time.Since(back) < 2*keyRetry {
					if in, err := k.Use(t.Context(), r.to("GET", "api.example.com", "/")); err == nil {
						if got := in.Set["Authorization"].Reveal(); got != "Bearer s3cret-value" {
							t.Errorf("it is back, and a request carries %q", got)
						}
						time.Sleep(openTime) // attempts that still hang end, and undo nothing
						if in, err := k.Use(t.Context(), r.to("GET", "api.example.com", "/")); err != nil ||
							in.Set["Authorization"].IsZero() {
							t.Errorf("after that: %v", err)
						}
						return
					}
					time.Sleep(keyRetry / 10)
				}
				t.Errorf("%v after it came back, requests still fail", time.Since(back))
			})
		})
	}
}
