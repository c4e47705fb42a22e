package main

import (
	"cmp"
	"context"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
)

// slowDown is how much less often is asked when the provider wants that (RFC 8628).
const slowDown = 5 * time.Second

// loginDevice signs somebody in who opens the page on another device.
func (a *app) loginDevice(ctx context.Context, c *client.Client, data string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, loginPatience, outboard.Errorf(outboard.Canceled,
		"nobody signed in within %s", loginPatience))
	defer cancel()
	d, err := c.StartDevice(ctx)
	if err != nil {
		return err
	}
	a.say("sign in on any device at %s with the code %s, which is good for %s", term.Line(d.URL, 4096),
		term.Line(d.User, 100), time.Duration(d.Lasts)*time.Second)
	every := max(time.Second, time.Duration(d.Every)*time.Second)
	for {
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		in, err := c.FinishDevice(ctx, d.Code, cmp.Or(a.org, a.env("OUTBOARD_ORG")))
		switch {
		case err != nil:
			return err
		case in.Type == "login":
			if err := saveLogin(data, c.URL(), in.Login); err != nil {
				return err
			}
			return a.signedIn(c.URL(), in.Login)
		case in.SlowDown:
			every += slowDown
		}
	}
}
