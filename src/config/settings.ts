/** The value of every flag with the place it came from, read by name and type. */
import { assert } from '../assert.ts';
import type { JsonObject, SettingValue } from './flag-spec.ts';

export type Source = 'flag' | 'environment' | 'file' | 'default';

export interface Setting {
  readonly value: SettingValue;
  readonly source: Source;
  /** Name of the variable or path of the file; empty for flags and defaults. */
  readonly origin: string;
}

export class Settings {
  readonly #settings: ReadonlyMap<string, Setting>;

  constructor(settings: ReadonlyMap<string, Setting>) {
    this.#settings = settings;
  }

  get(name: string): Setting {
    const setting = this.#settings.get(name);
    assert(setting, `no flag ${name} in the table`);
    return setting;
  }

  isGiven(name: string): boolean {
    return this.get(name).source !== 'default';
  }

  number(name: string): number {
    const { value } = this.get(name);
    assert(typeof value === 'number', `${name} is not a number`);
    return value;
  }

  numberOrNull(name: string): number | null {
    return this.get(name).value === null ? null : this.number(name);
  }

  text(name: string): string {
    const { value } = this.get(name);
    assert(typeof value === 'string', `${name} is not a text`);
    return value;
  }

  textOrNull(name: string): string | null {
    return this.get(name).value === null ? null : this.text(name);
  }

  isOn(name: string): boolean {
    const { value } = this.get(name);
    assert(typeof value === 'boolean', `${name} is not a switch`);
    return value;
  }

  texts(name: string): readonly string[] {
    const { value } = this.get(name);
    assert(Array.isArray(value), `${name} is not a list`);
    return value as readonly string[];
  }

  objects(name: string): readonly JsonObject[] {
    const { value } = this.get(name);
    assert(Array.isArray(value), `${name} is not a list`);
    return value as readonly JsonObject[];
  }
}
