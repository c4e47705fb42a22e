package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

const (
	// sshKeyLasts is how long the key of one outboard ssh is good for opening a connection; the connection lasts
	// as long.
	sshKeyLasts = 12 * time.Hour
	// sshDialTime bounds connecting, with the proof of who both ends are.
	sshDialTime = 30 * time.Second
)

type sshOptions struct{ address string }

func newSSH(a *app) *cobra.Command {
	var o sshOptions
	cmd := &cobra.Command{Use: "ssh SESSION|BOX [-- COMMAND [ARG...]]",
		Short: "Open a shell in a sandbox, or run a command there", Args: rangeArgs(1, -1, "a session or a box"),
		Long: "Open a shell in the sandbox of a session or in a box, or run a command there, by SSH. A sandbox that " +
			"rests is woken; a session without one\n" +
			"gets it. The server must run with --ssh. The key is made for this one connection and ends with it: for ssh, scp, sftp and rsync\n" +
			"themselves, register one with outboard ssh-key add, and use ID@HOST as docs/guide/ssh.md shows.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return runSSH(cmd.Context(), a, &o, args[0], args[1:], findTarget)
		}}
	sshFlags(cmd, &o)
	return cmd
}

func newBoxSSH(a *app) *cobra.Command {
	var o sshOptions
	cmd := &cobra.Command{Use: "ssh BOX [-- COMMAND [ARG...]]", Short: "Open a shell in a box, or run a command there",
		Args: rangeArgs(1, -1, "a box"),
		Long: "Open a shell in a box, or run a command there, by SSH: outboard ssh of a box.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return runSSH(cmd.Context(), a, &o, args[0], args[1:],
				func(ctx context.Context, c *client.Client, ref string) (string, error) {
					b, err := findBox(ctx, c, ref)
					return b.ID, err
				})
		}}
	sshFlags(cmd, &o)
	return cmd
}

func sshFlags(cmd *cobra.Command, o *sshOptions) {
	cmd.Flags().SetInterspersed(false) // what follows the sandbox is the command's
	cmd.Flags().StringVar(&o.address, "address", "", "HOST:PORT of the SSH server (default: what the server says, "+
		"at its own host)")
}

// findTarget resolves a session or a box to its id.
func findTarget(ctx context.Context, c *client.Client, ref string) (string, error) {
	if strings.HasPrefix(ref, "box") {
		if b, err := findBox(ctx, c, ref); err == nil || outboard.KindOf(err) != outboard.NotFound {
			return b.ID, err
		}
	}
	s, err := findSession(ctx, c, ref)
	if outboard.KindOf(err) == outboard.NotFound {
		err = outboard.Errorf(outboard.NotFound, "there is no session and no box %q", ref).
			WithHint("outboard ls -a lists sessions, outboard box ls boxes")
	}
	return s.ID, err
}

func runSSH(ctx context.Context, a *app, o *sshOptions, ref string, argv []string,
	find func(context.Context, *client.Client, string) (string, error)) (err error) {
	if len(argv) > 0 && argv[0] == "--" {
		argv = argv[1:]
	}
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	id, err := find(ctx, c.Client, ref)
	if err != nil {
		return err
	}
	door, err := c.SSH(ctx)
	if err != nil {
		return err
	}
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return err
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		return err
	}
	key, err := c.AddSSHKey(ctx, "outboard ssh", string(ssh.MarshalAuthorizedKey(signer.PublicKey())), sshKeyLasts)
	if err != nil {
		return err
	}
	defer func() {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if _, rerr := c.RevokeSSHKey(late, key.ID); rerr != nil {
			a.say("the key of this connection lasts for %v: outboard ssh-key rm %s (%v)", sshKeyLasts, key.ID, rerr)
		}
	}()
	conn, err := o.dialSSH(ctx, o.dial(c.URL(), door.Address), door.HostKey, id, signer)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	return a.overSSH(ctx, conn, argv)
}

// dial is where to connect: the host that the API is at, with the port on which the server takes SSH.
func (o *sshOptions) dial(api, listens string) string {
	if o.address != "" {
		return o.address
	}
	host, port, err := net.SplitHostPort(listens)
	u, uerr := url.Parse(api)
	if err != nil || uerr != nil {
		return listens
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() || ip.IsLoopback() {
		host = u.Hostname()
	}
	return net.JoinHostPort(host, port)
}

// dialSSH connects, to nobody but the holder of the host key that the API named.
func (o *sshOptions) dialSSH(ctx context.Context, address, hostKey, user string,
	signer ssh.Signer) (*ssh.Client, error) {
	want, _, _, _, err := ssh.ParseAuthorizedKey([]byte(hostKey))
	if err != nil {
		return nil, outboard.Errorf(outboard.Internal, "the server names a host key that is none: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, sshDialTime)
	defer cancel()
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, o.unreached(address, err)
	}
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	sc, chans, reqs, err := ssh.NewClientConn(nc, address, &ssh.ClientConfig{User: user,
		Auth:            []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback: ssh.FixedHostKey(want), HostKeyAlgorithms: []string{want.Type()}, ClientVersion: "SSH-2.0-Outboard"})
	if err != nil {
		nc.Close()
		return nil, outboard.Errorf(outboard.Denied, "opening an SSH connection to %s: %w", address, err).
			WithHint("the audit says why: outboard audit ls --action ssh.connect")
	}
	return ssh.NewClient(sc, chans, reqs), nil
}

// unreached is the error of an address that cannot be dialled. The API answered, so where that is needs no look.
func (o *sshOptions) unreached(address string, err error) error {
	hint := "a firewall or proxy may be between: name an address that leads there with --address HOST:PORT"
	if o.address != "" {
		hint = "check --address, or leave it out to dial what the server says"
	}
	return &exitError{exitTransport, outboard.Errorf(outboard.Unavailable, "reaching ssh://%s: %w", address, err).
		WithHint("%s", hint)}
}

// overSSH runs a command, or a login shell on a terminal, and ends with its exit code.
func (a *app) overSSH(ctx context.Context, conn *ssh.Client, argv []string) error {
	s, err := conn.NewSession()
	if err != nil {
		return outboard.Errorf(outboard.Unavailable, "opening a session: %w", err)
	}
	defer s.Close()
	in, err := s.StdinPipe()
	if err != nil {
		return err
	}
	s.Stdout, s.Stderr = a.out, a.errs
	if len(argv) == 0 && term.IsTerminal(a.in) && term.IsTerminal(a.out) {
		restore, stop, err := a.terminal(s)
		if err != nil {
			return err
		}
		defer restore()
		defer stop()
	} else if term.IsTerminal(a.out) {
		w, e := term.NewWriter(a.out), term.NewWriter(a.errs)
		defer w.Flush()
		defer e.Flush()
		s.Stdout, s.Stderr = w, e
	}
	go func() { // ends with standard input, which nobody can take away from a read; the process ends soon after us
		_, _ = io.Copy(in, a.in)
		in.Close()
	}()
	if len(argv) == 0 {
		err = s.Shell()
	} else {
		err = s.Start(joinArgs(argv))
	}
	if err == nil {
		err = s.Wait()
	}
	return sshEnded(ctx, err)
}

// terminal takes over the person's terminal for a shell.
func (a *app) terminal(s *ssh.Session) (restore, stop func(), err error) {
	cols, rows := term.Size(a.out)
	name := a.env("TERM")
	if name == "" {
		name = "xterm-256color"
	}
	if err := s.RequestPty(name, rows, cols, ssh.TerminalModes{}); err != nil {
		return nil, nil, outboard.Errorf(outboard.Unavailable, "asking for a terminal: %w", err)
	}
	if restore, err = term.Raw(a.in); err != nil {
		return nil, nil, outboard.Errorf(outboard.Invalid, "taking over the terminal: %w", err)
	}
	return restore, term.OnResize(func() {
		cols, rows := term.Size(a.out)
		_ = s.WindowChange(rows, cols) // the next change sets it right
	}), nil
}

// sshEnded turns the end of a program into an exit code: after a signal 128 and its number, which package ssh finds.
func sshEnded(ctx context.Context, err error) error {
	if exit, ok := errors.AsType[*ssh.ExitError](err); ok {
		if exit.Signal() != "" {
			return &exitError{code: exit.ExitStatus(), err: outboard.Errorf(outboard.Canceled,
				"the program was ended by a signal: SIG%s", exit.Signal())}
		}
		return &exitError{code: exit.ExitStatus()}
	}
	if _, cut := errors.AsType[*ssh.ExitMissingError](err); cut || errors.Is(err, io.EOF) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return outboard.Errorf(outboard.Unavailable, "the connection was cut").
			WithHint("the sandbox was paused or ended, the server stopped, or you may not be there any more")
	}
	return err
}

// joinArgs makes one command of its words, for the shell at the other end. A single word is a command line
// already, as for ssh.
func joinArgs(argv []string) string {
	if len(argv) == 1 {
		return argv[0]
	}
	var b bytes.Buffer
	for i, w := range argv {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString("'" + strings.ReplaceAll(w, "'", `'\''`) + "'")
	}
	return b.String()
}
