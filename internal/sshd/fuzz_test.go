package sshd

import (
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
)

// FuzzRequests asks a channel for what may come from a client. If this fails, one crashes the server, or gives
// its program more, larger or other variables than those that say how to speak, a command that is cut in two, a
// screen without end, or a port that is not the sandbox's.
func FuzzRequests(f *testing.F) {
	type text struct{ Text string }
	add := func(kind string, v any) { f.Add(kind, ssh.Marshal(v), kind, ssh.Marshal(v), true) }
	add("exec", text{"uname -a"})
	add("exec", text{"a\x00b"})
	add("subsystem", text{"sftp"})
	add("subsystem", text{"netconf"})
	add("env", struct{ Name, Value string }{"LC_ALL", "C.UTF-8"})
	add("env", struct{ Name, Value string }{"LD_PRELOAD", "/x.so"})
	add("env", struct{ Name, Value string }{"LC_A=B", "C"})
	add("pty-req", struct {
		Term                      string
		Cols, Rows, Width, Height uint32
		Modes                     string
	}{"xterm-256color", 80, 1 << 31, 0, 0, "\x01\x00\x00\x25\x80\x00"})
	f.Add("pty-req", []byte("\x00\x00\x00\x05xterm\x00\x00\x00\x50\x00\x00\x00\x18\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), "window-change",
		ssh.Marshal(struct{ Cols, Rows, Width, Height uint32 }{1 << 31, 24, 0, 0}), false)
	add("signal", text{"TERM"})
	add("direct-tcpip", struct {
		Host string
		Port uint32
		From string
		Via  uint32
	}{"localhost", 1<<16 + 80, "127.0.0.1", 40000})
	f.Add("shell", []byte(nil), "env", []byte("\xff\xff\xff\xff"), true)
	f.Fuzz(func(t *testing.T, kind1 string, payload1 []byte, kind2 string, payload2 []byte, started bool) {
		s := &session{env: map[string]string{}}
		for _, req := range []*ssh.Request{{Type: kind1, Payload: payload1}, {Type: kind2, Payload: payload2}} {
			if s.request(t.Context(), req, started) && started {
				t.Errorf("%q is done to a program that does not run", req.Type)
			}
			if p, ok := s.program(req); ok && (strings.ContainsRune(p.command, 0) || len(p.command) > maxCommand) {
				t.Errorf("the command is %q", p.command)
			}
			if port, ok := portOf(req.Payload); ok && port == 0 {
				t.Error("port 0 is forwarded to")
			}
		}
		if s.size != nil && (int(s.size.Cols) > maxCols || int(s.size.Rows) > maxCols) {
			t.Errorf("the screen is %v", *s.size)
		}
		for name, value := range s.env {
			if name != "LANG" && name != "TERM" && !strings.HasPrefix(name, "LC_") ||
				len(name)+len(value) > maxEnvText || strings.Contains(name, "=") {
				t.Errorf("the program has %q=%q", name, value)
			}
			if strings.ContainsAny(name+value, "\x00\n") {
				t.Errorf("the program has %q=%q", name, value)
			}
		}
	})
}
