package boot

import "github.com/outboard-dev/outboard/internal/guest/form"

// Fields returns what a host tells a guest that it starts.
func (c *Config) Fields() []any {
	return []any{&c.Generation, &c.Hostname, &c.Later, &c.Env, &c.ToolUID, &c.ToolGID, &c.ToolName, &c.Rooted, &c.Upper,
		&c.UpperSize,
		&c.Lower, form.List(&c.Binds), &c.Trees, form.List(&c.Owned), &c.Networked, &c.Memory, &c.MilliCPUs, &c.ShmSize, &c.Masked, &c.ReadOnly, &c.BootID,
		form.Maybe(&c.Network), &c.Files, &c.Processes, &c.DataBytes, &c.Keep, &c.Inherit, &c.Filter}
}

// Fields returns what it tells one that was started ahead.
func (id *Identity) Fields() []any { return []any{&id.Generation, &id.Env, &id.CA} }

// Fields returns those of a part of Config.
func (b *Bind) Fields() []any { return []any{&b.Source, &b.Target, &b.File} }

// Fields returns those of a part of Config.
func (d *Dir) Fields() []any { return []any{&d.Path, &d.Mode, &d.Tool} }

// Fields returns those of a part of Config.
func (u *Uplink) Fields() []any { return []any{&u.CA, &u.Redirected} }
